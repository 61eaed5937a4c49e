"""Ensembles of models, and weights that are fitted to held-out data."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable.checkpoint import load_weights
from composable.metrics import accuracy
from composable.models import Ensemble
from tests.support.data import batches, examples
from tests.support.hub_models import HEADS
from tests.support.models import conv_net, linear, mlp, same
from tests.support.runs import make_trainer

LENGTHS = [2, 6, 3, 5]


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
    binary = nn.Linear(4, 1)

    with pytest.raises(ValueError, match=r"one class in dimension 1 .*torch.cat"):
        Ensemble([binary, binary])(torch.zeros(2, 4))


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


def test_models_with_different_outputs_are_refused():
    ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 2)])

    with pytest.raises(ValueError, match=r"logits\[1\] has shape \(2, 2\).* of one shape"):
        ensemble(torch.zeros(2, 4))


def test_fitted_weights_have_no_higher_loss_than_any_model_or_their_average():
    inputs, targets = examples(16)
    models = [linear(seed) for seed in range(4)]
    found = [-cross_entropy(model(inputs), targets, reduction="none") for model in models]

    weights = F.mixture_weights(torch.stack(found))

    loss = cross_entropy(Ensemble(models, weights=weights)(inputs), targets)
    assert loss < cross_entropy(Ensemble(models)(inputs), targets)
    assert all(loss <= cross_entropy(model(inputs), targets) + 1e-3 for model in models)
