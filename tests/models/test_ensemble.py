"""Ensembles of models, and mixtures that are fitted to held-out data."""

from copy import deepcopy
from math import inf, nan

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import Dataset, TensorDataset, random_split

from composable.checkpoint import load_weights
from composable.metrics import accuracy
from composable.models import Ensemble, fit_mixture
from tests.support.data import batches, examples
from tests.support.hub_models import HEADS
from tests.support.models import CLASSES, conv_net, linear, mlp, same
from tests.support.runs import make_trainer

DATA = TensorDataset(*examples(40))
LENGTHS = [2, 6, 3, 5]


def divided(data=DATA):
    return random_split(data, [24, 16], torch.Generator().manual_seed(0))


class Sure(nn.Module):
    """Predicts a class of which it is sure, or all alike."""

    def __init__(self, best=None):
        super().__init__()
        self.best = best

    def forward(self, inputs):
        logits = torch.zeros(len(inputs), CLASSES)
        return logits if self.best is None else logits.index_fill(1, torch.tensor(self.best), 5.0)


# --- ensembles ---


def test_probabilities_are_averaged_and_not_logits():
    inputs, _ = examples(6)
    models = [linear(seed) for seed in range(3)]

    found = Ensemble(models, weights=[2, 1, 1])(inputs).exp()

    one, two, three = (model(inputs).softmax(1) for model in models)
    assert_close(found, one / 2 + two / 4 + three / 4)


def test_an_ensemble_of_one_model_predicts_as_it_does():
    inputs, _ = examples(6, images=True)
    model = conv_net().eval()

    assert_close(Ensemble([model])(inputs), model(inputs).log_softmax(1))


@pytest.mark.parametrize("training", [True, False])
def test_members_are_evaluated_and_keep_their_modes_buffers_and_gradients(training):
    inputs, _ = examples(6, images=True)
    models = [conv_net().train(training), conv_net(seed=1)]
    models[1][1].eval()  # a frozen batch norm
    modes = [[one.training for one in model.modules()] for model in models]
    buffers = deepcopy([dict(model.named_buffers()) for model in models])

    ensemble = Ensemble(models)
    found = ensemble(inputs.requires_grad_())

    assert modes == [[one.training for one in model.modules()] for model in models]
    assert same(buffers[0], dict(models[0].named_buffers()))
    assert torch.equal(ensemble.eval()(inputs), found)
    assert torch.autograd.grad(found[:, 0].sum(), inputs)[0].count_nonzero() > 0


def test_a_single_class_is_refused():
    train, held_out = divided()
    binary = nn.Linear(4, 1)

    with pytest.raises(ValueError, match=r"one class in dimension 1 .*torch.cat"):
        Ensemble([binary, binary])(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"one class in dimension 1 .*torch.cat"):
        fit_mixture([binary], held_out, trained_on=train)


def test_a_trainer_evaluates_an_ensemble_of_the_snapshots_of_its_run(tmp_path):
    loader = batches(12)
    make_trainer(mlp(), loader, save_folder=tmp_path, save_interval="1ep").fit()
    ensemble = Ensemble([mlp(), mlp()])
    for member, path in zip(ensemble.members, ("ep1-ba3", "ep2-ba6"), strict=True):
        load_weights(member, tmp_path / path)

    trainer = make_trainer(ensemble, metrics={"accuracy": accuracy}, optimizers=())
    metrics = trainer.eval(loader)["eval"]

    inputs, targets = (torch.cat(parts) for parts in zip(*loader, strict=True))
    expected = sum(member(inputs).softmax(1) for member in ensemble.members) / 2
    assert metrics["loss"] == pytest.approx(cross_entropy(expected.log(), targets).item())
    right = (expected.argmax(1) == targets).float().mean().item()
    assert metrics["accuracy"] == pytest.approx(right)


def test_an_ensemble_of_models_of_transformers_averages_over_the_last_dimension():
    batch = HEADS["causal"].batch(LENGTHS)
    models = [HEADS["causal"].build() for _ in range(2)]
    with torch.no_grad():
        models[1].lm_head.weight.mul_(3)

    found = Ensemble(models)(**batch)

    expected = sum(model(**batch).logits.softmax(-1) for model in models) / 2
    assert_close(found.exp(), expected)


def test_an_ensemble_of_models_of_transformers_averages_over_the_classes_of_pixels():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation  # it is optional

    sizes = {name: [8] for name in ("hidden_sizes", "patch_sizes", "strides")}
    ones = ("depths", "sr_ratios", "num_attention_heads", "mlp_ratios")
    config = SegformerConfig(num_encoder_blocks=1, **sizes, **{name: [1] for name in ones})
    model, images = SegformerForSemanticSegmentation(config).eval(), torch.randn(2, 3, 16, 16)

    found = Ensemble([model, model])(images)

    assert_close(found, model(images).logits.log_softmax(1))


@pytest.mark.parametrize(
    ("members", "options", "error", "words"),
    [
        ([], {}, ValueError, "at least one model"),
        (nn.Linear(1, 1), {}, TypeError, "members must be a list of modules"),
        ([nn.Linear(1, 1), 3], {}, TypeError, r"members\[1\]"),
        ([linear(), linear()], {"weights": [1.0]}, ValueError, "one number for each of the 2"),
        ([linear(), linear()], {"weights": [0.0, 0.0]}, ValueError, "not all 0"),
        ([linear(), linear()], {"weights": [-1.0, 2.0]}, ValueError, "0 or more"),
        ([linear(), linear()], {"weights": "ab"}, TypeError, "weights='ab' must be a list"),
        ([linear()], {"class_dim": 2}, ValueError, "class_dim=2 must be 1"),
    ],
)
def test_what_is_no_ensemble_is_refused(members, options, error, words):
    with pytest.raises(error, match=words):
        Ensemble(members, **options)


def test_models_with_different_outputs_are_refused():
    ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 2)])

    with pytest.raises(ValueError, match=r"logits\[1\] has shape \(2, 2\).* of one shape"):
        ensemble(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="must have the same classes"):
        fit_mixture(ensemble.members, divided()[1], trained_on=divided()[0])


# --- mixtures ---


def test_a_mixture_weights_models_by_what_they_know():
    train, held_out = divided()
    targets = torch.stack([target for _, target in held_out])

    mixture = fit_mixture([Sure(), *map(Sure, range(CLASSES))], held_out, trained_on=train, top=3)

    shares = torch.bincount(targets, minlength=CLASSES) / len(targets)
    kept = [one.best for one in mixture.members]
    assert len(kept) == 3
    assert mixture.weights.tolist() == sorted(mixture.weights.tolist(), reverse=True)
    assert kept[0] in (None, int(shares.argmax()))
    assert float(mixture.weights.sum()) == pytest.approx(1)


def test_a_mixture_has_no_higher_loss_on_its_data_than_any_model_or_their_average():
    train, held_out = divided()
    inputs, targets = (torch.stack(parts) for parts in zip(*held_out, strict=True))
    models = [linear(seed) for seed in range(4)]

    mixture = fit_mixture(models, held_out, trained_on=train, batch_size=5)

    loss = cross_entropy(mixture(inputs), targets)
    assert loss < cross_entropy(Ensemble(models)(inputs), targets)
    assert all(loss <= cross_entropy(model(inputs), targets) + 1e-3 for model in models)


def test_a_fit_evaluates_the_models_and_keeps_their_modes():
    train, held_out = divided()
    models = [mlp(dropout=0.5, seed=seed) for seed in range(3)]
    models[0].eval()

    found = [fit_mixture(models, held_out, trained_on=train).weights for _ in range(2)]

    assert torch.equal(*found)
    assert [one.training for one in models] == [False, True, True]


def test_one_of_equal_models_is_kept_and_one_example_is_enough():
    train, held_out = divided()
    models = [linear(), linear(), linear(1)]

    mixture = fit_mixture(models[:2], held_out, trained_on=train, top=1)
    of_one = fit_mixture(models, torch.utils.data.Subset(held_out, [0]), trained_on=train)

    assert len(mixture.members) == mixture.weights.item() == 1
    inputs, target = held_out[0]
    losses = [cross_entropy(one(inputs[None]), target[None]).item() for one in of_one.members]
    assert losses == sorted(losses)


@pytest.mark.parametrize("head", ["causal", "decoder that does not shift", "classes"])
def test_a_mixture_of_models_of_transformers_reads_their_labels(head):
    def items(seed):
        batch = HEADS[head].batch(LENGTHS * 3, seed=seed)
        return [{name: value[i] for name, value in batch.items()} for i in range(12)]

    models = [HEADS[head].build() for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.5)

    mixture = fit_mixture(models, items(0), trained_on=items(1), batch_size=4)

    batch = HEADS[head].batch(LENGTHS * 3, seed=0)
    losses = [model(**batch).loss.item() for model in models]
    assert mixture.members[0] is models[losses.index(min(losses))]


class Random(Dataset):
    """Examples that are augmented at random."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(4), index % CLASSES


def test_a_model_that_has_diverged_is_named():
    train, held_out = divided()
    diverged = linear(1)
    nn.init.constant_(diverged.weight, nan)

    with pytest.raises(
        ValueError, match=r"the models \[1\], counted from 0, predict NaN.*omit them"
    ):
        fit_mixture([linear(), diverged], held_out, trained_on=train)


def test_labels_that_no_model_can_predict_are_refused():
    class Never(Sure):
        def forward(self, inputs):
            return super().forward(inputs).index_fill(1, torch.tensor(0), -inf)

    train, held_out = divided()

    with pytest.raises(ValueError, match="to which no model gives a probability above 0"):
        fit_mixture([Never(), member := Never(1)], held_out, trained_on=train)
    assert member.training


def test_data_that_was_trained_on_is_refused():
    train, held_out = divided()
    copied = TensorDataset(*(one.clone() for one in DATA.tensors))

    for trained_on in (
        DATA,
        held_out,
        copied,
        torch.utils.data.Subset(DATA, [held_out.indices[0]]),
    ):
        with pytest.raises(
            ValueError, match=r"of held_out are in trained_on, such as held_out\[0\]"
        ):
            fit_mixture([linear()], held_out, trained_on=trained_on)

    fit_mixture([linear()], held_out, trained_on=[copied[i] for i in train.indices])


class Flipped(Random):
    """Half of the examples are augmented, the first one at times not."""

    def __getitem__(self, index):
        self.calls = getattr(self, "calls", 0) + 1
        flip = self.calls % 3 == 0
        return torch.arange(4.0).flip(0) if flip else torch.arange(4.0), index % CLASSES


def test_examples_that_are_random_at_times_are_refused():
    with pytest.raises(ValueError, match="examples of trained_on are random"):
        fit_mixture([linear()], divided()[1], trained_on=Flipped())


@pytest.mark.parametrize(
    ("labels", "error", "words"),
    [
        (torch.full((4,), -100), ValueError, "held_out has no labels but -100"),
        (torch.rand(4), TypeError, r"class indices of shape \(4,\).* not torch.float32, \(4,\)"),
        (torch.rand(4, 3), TypeError, r"class indices of shape \(4,\).* not torch.float32"),
        (torch.zeros(4, 2, dtype=torch.long), TypeError, r"not torch.int64, \(4, 2\)"),
    ],
)
def test_labels_that_are_not_of_one_class_are_refused(labels, error, words):
    with pytest.raises(error, match=words):
        fit_mixture([linear()], TensorDataset(torch.rand(4, 4), labels), trained_on=divided()[0])


def test_random_examples_can_be_compared_by_their_indices_only():
    data = Random()
    train, held_out = random_split(data, [2, 2])

    fit_mixture([linear()], held_out, trained_on=train)

    with pytest.raises(ValueError, match=r"examples of trained_on are random.* two subsets of one"):
        fit_mixture([linear()], Random(), trained_on=data)


@pytest.mark.parametrize(
    ("held_out", "options", "error", "words"),
    [
        (3, {}, TypeError, "held_out must be a dataset"),
        (torch.utils.data.DataLoader(DATA), {}, TypeError, "pass loader.dataset"),
        ([], {}, ValueError, "held_out is empty"),
        (divided()[1], {"top": 3}, ValueError, "top=3 must be at most the number of models, 1"),
        (divided()[1], {"batch_size": 0}, ValueError, "batch_size=0"),
    ],
)
def test_what_is_no_held_out_data_is_refused(held_out, options, error, words):
    with pytest.raises(error, match=words):
        fit_mixture([linear()], held_out, trained_on=divided()[0], **options)
