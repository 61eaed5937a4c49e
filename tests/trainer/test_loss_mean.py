"""What the loss is a mean over: recognized, declared, or refused."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Algorithm, Event, SplitLossError
from composable.algorithms import LabelSmoothing, MixUp
from composable.core.state import State
from composable.distributed import DDP
from composable.functional import MixedTargets
from composable.losses.loss import TargetLoss
from composable.losses.mean import count_loss_tokens
from tests.support.data import CLASSES, IGNORED, batches, examples
from tests.support.models import linear, same, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, trained

TOKENS = torch.randint(1, 7, (4, 6), generator=torch.Generator().manual_seed(0))
PADDED = TOKENS.masked_fill(torch.arange(6) > torch.tensor([[1], [5], [3], [4]]), -100)


class Bigram(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens).mT


def fit(targets=PADDED, **options):
    options = {"train_dataloader": [(TOKENS, targets)], "max_duration": "1ep", **options}
    return trained(seeded(lambda: Bigram(7, 7)), **options)


def gradient_of(parts, **options):
    """Return the change of the weights by one step of SGD on all examples."""
    before = weights(seeded(lambda: Bigram(7, 7)))
    options = {"optimizers": partial(torch.optim.SGD, lr=1.0), **options}
    return {
        name: before[name] - one for name, one in fit(train_dataloader=parts, **options).items()
    }


WHOLE, PARTS = [(TOKENS, PADDED)], [(TOKENS[:1], PADDED[:1]), (TOKENS[1:], PADDED[1:])]


class Masked(nn.Module):
    """A loss that declares its weight, which a watch can't find."""

    def forward(self, outputs, targets):
        losses = cross_entropy(outputs, targets, reduction="none")
        return losses.sum() / (targets >= 0).sum().clamp(min=1)

    def loss_weight(self, outputs, batch):
        return (batch[1] >= 0).sum()


class OfLabels(Masked):
    """A mean over labels that declares how many there are."""

    def forward(self, outputs, targets):
        return cross_entropy(outputs, targets)


IGNORES_1 = {"loss_fn": partial(cross_entropy, ignore_index=-1)}
SMOOTHED = {"loss_fn": OfLabels(), "algorithms": [LabelSmoothing()]}


@pytest.mark.parametrize(
    ("parts", "run", "split"),
    [
        (WHOLE, {}, {"grad_accum": 3}),
        (PARTS, {}, {"accumulate_batches": 2}),
        (WHOLE, {}, {"grad_accum": 3, "loss_mean_over": "tokens"}),
        (PARTS, {}, {"accumulate_batches": 2, "loss_mean_over": "tokens"}),
        (WHOLE, {}, {"grad_accum": 3, "loss_mean_over": lambda b: int((b[1] >= 0).sum())}),
        (WHOLE, {}, {"grad_accum": 3, "loss_mean_over": lambda outputs, b: (b[1] >= 0).sum()}),
        # tokens are labels of at least 0, whatever the loss ignores
        (
            [(TOKENS, PADDED.clamp(min=-1))],
            IGNORES_1,
            {"grad_accum": 3, "loss_mean_over": "tokens"},
        ),
        (WHOLE, {"loss_fn": Masked()}, {"grad_accum": 4}),
        (WHOLE, {"loss_fn": Masked()}, {"parallel": DDP(shards=3)}),
        (WHOLE, SMOOTHED, {"microbatch_size": 1}),  # an algorithm replaces the targets
    ],
)
def test_loss_over_labels_is_recognized_or_declared(parts, run, split):
    whole = [tuple(map(torch.cat, zip(*parts, strict=True)))]

    torch.testing.assert_close(gradient_of(parts, **run, **split), gradient_of(whole, **run))


def test_examples_are_the_mean_of_the_losses_of_equal_microbatches():
    found = gradient_of(WHOLE, grad_accum=2, loss_mean_over="examples")

    halves = [gradient_of([(TOKENS[rows], PADDED[rows])]) for rows in (slice(2), slice(2, 4))]
    expected = {name: (halves[0][name] + halves[1][name]) / 2 for name in found}
    torch.testing.assert_close(found, expected)


def test_evaluation_uses_the_declared_weight():
    trainer = make_trainer(Bigram(7, 7), loss_fn=Masked())

    found = trainer.eval(PARTS)["eval"]["loss"]

    expected = Masked()(trainer.state.model(TOKENS), PADDED).item()
    assert found == pytest.approx(expected)


def declaring(weight):
    loss = Masked()
    loss.loss_weight = lambda outputs, batch: weight
    return loss


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (-1, ValueError, "loss_weight returned -1.0 and must return a finite number of at least 0"),
        (float("nan"), ValueError, "loss_weight returned nan"),
        (torch.tensor(-2.0), ValueError, "loss_weight returned -2.0"),
        (torch.ones(2), ValueError, r"loss_weight returned a tensor of shape \(2,\)"),
        (torch.ones((), device="meta"), ValueError, "on 'meta' and must return .* device of the"),
        ("three", TypeError, "loss_weight returned 'three'"),
        (None, TypeError, "loss_weight returned None"),
    ],
)
def test_declared_weight_must_be_a_number(weight, error, message):
    with pytest.raises(error, match=message):
        fit(loss_fn=declaring(weight), grad_accum=2)


@pytest.mark.parametrize(
    "options",
    [
        {"loss_fn": declaring(0)},
        {"loss_mean_over": lambda batch: 0},
        {"loss_mean_over": lambda outputs, batch: 0},
        {"loss_fn": declaring(torch.tensor(0))},
        {"loss_mean_over": lambda batch: torch.tensor(0)},
        {"loss_mean_over": lambda outputs, batch: torch.tensor(0.0)},
    ],
)
def test_weights_that_are_all_zero_are_an_error(options):
    with pytest.raises(ValueError, match="the weights of all parts of a batch add up to 0"):
        fit(**options, grad_accum=2)


@pytest.mark.parametrize("options", [{}, {"grad_accum": 2}])
def test_a_loss_without_a_value_is_an_error_that_names_the_argument(options):
    def loss_fn(outputs, targets):
        return cross_entropy(outputs.to("meta"), targets.to("meta"))

    with pytest.raises(ValueError, match=r"loss_fn returned a tensor on 'meta'.* on the device of"):
        fit(loss_fn=loss_fn, **options)


def test_a_part_without_weight_has_no_gradient():
    weight = torch.ones(7)
    weight[5] = 0.0
    targets = TOKENS.clone()
    targets[0] = 5
    run = {"parts": [(TOKENS, targets)], "loss_fn": nn.CrossEntropyLoss(weight)}

    torch.testing.assert_close(gradient_of(**run, microbatch_size=1), gradient_of(**run))


@pytest.mark.parametrize("algorithm", [None, LabelSmoothing(), MixUp()], ids=str)
@pytest.mark.parametrize("options", [{"microbatch_size": 2}, {"parallel": DDP(shards=2)}])
def test_a_batch_without_labels_changes_no_weight(algorithm, options):
    images, labels = examples(4)
    found = trained(
        linear(),
        [(images, torch.full_like(labels, IGNORED))],
        optimizers=partial(torch.optim.SGD, lr=0.1),
        algorithms=algorithm,
        nonfinite_loss="ignore",
        max_duration="1ba",
        **options,
    )

    assert same(found, weights(linear()))


def test_another_loss_with_the_same_calls_is_confirmed_again():
    def contrastive(outputs, targets):
        return cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))

    def plain(outputs, targets):
        return cross_entropy(outputs, targets)

    trainer = make_trainer(linear(), loss_fn=plain, grad_accum=2, max_duration="1ba")
    state = trainer.fit().evolve(batch=batches(4, 4)[0])
    trainer.train_batch(state)

    with pytest.raises(SplitLossError, match="compares the examples of a batch"):
        trainer.train_batch(state.evolve(loss_fn=TargetLoss(contrastive, state.batch_spec)))


def test_unit_changes_no_bits():
    def after(unit):
        trainer = make_trainer(linear(), batches(12, 6), parallel=DDP(shards=3))
        trainer._run.loss_shares.unit = unit
        return weights(trainer.fit().model)

    assert same(after(None), after(2.0**-20))
    assert same(after(None), after(2.0**20))


def test_counts_the_tokens_of_mixed_targets_by_their_weights():
    pair = MixedTargets(torch.tensor([[1, -100]]), torch.tensor([[-100, -100]]), torch.tensor(0.75))

    assert count_loss_tokens(pair).item() == 0.75


ONES = torch.tensor([0, 2, 1, 0])
RARE = [(torch.eye(4), ONES)]


def by_ones(outputs, targets):
    """Divide the losses of all examples by the number of ones, of which most parts have none."""
    return cross_entropy(outputs, targets, reduction="sum") / (targets == 1).sum()


class WithRare(nn.Module):
    """A model that computes such a loss in its forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, batch):
        inputs, targets = batch
        return by_ones(self.inner(inputs), targets)

    def loss(self, outputs, batch):
        return outputs


def whole_and_split(build, **options):
    """Return the weights after an epoch of a batch, and after that of its examples one by one."""
    options = {"max_duration": "1ep", **options}
    return [trained(seeded(build), RARE, microbatch_size=size, **options) for size in (None, 1)]


def test_sums_of_parts_whose_count_is_0_are_kept_by_a_forward_pass():
    whole, split = whole_and_split(WithRare, loss_fn=None)

    torch.testing.assert_close(split, whole)
    trainer = make_trainer(seeded(WithRare), loss_fn=None)
    examples = [(x[None], y[None]) for x, y in zip(*RARE[0], strict=True)]
    parts, all_at_once = (trainer.eval(data)["eval"]["loss"] for data in (examples, RARE))
    assert parts == pytest.approx(all_at_once)


@attrs.frozen(repr=False)
class Penalty(Algorithm):
    """Adds a function of the state to the loss."""

    of: Callable[[State], torch.Tensor]
    events = frozenset({Event.AFTER_LOSS})
    reads = frozenset({"loss", "model", "outputs"})
    writes = frozenset({"loss"})

    def apply(self, event, state):
        return state.evolve(loss=3 * state.loss + 0.1 * self.of(state))


def of_weights(function):
    return lambda state: sum(map(function, state.model.parameters()))


def with_mean(outputs, targets):
    return cross_entropy(outputs, targets, ignore_index=1) + outputs.square().mean()


def sliced(outputs, targets):
    """Take targets by the size of the batch, which is another one in its parts."""
    return cross_entropy(outputs, targets[: len(outputs)], ignore_index=1)


SUM_OF_SQUARES = of_weights(lambda weight: weight.square().sum())
NORM = of_weights(torch.norm)
OUTPUTS = lambda state: state.outputs.square().sum()  # noqa: E731
PENALTIES = {
    "none, targets by the size of the batch": (sliced, lambda state: 0),
    "squares": (cross_entropy, SUM_OF_SQUARES),
    "norms": (cross_entropy, NORM),
    "outputs": (cross_entropy, OUTPUTS),
    "squares, a rare count": (by_ones, SUM_OF_SQUARES),
    "norms, two means": (with_mean, NORM),
    "outputs, a rare count": (by_ones, OUTPUTS),
    "outputs, two means": (with_mean, OUTPUTS),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_penalty_of_an_algorithm_counts_once(name):
    loss_fn, penalty = PENALTIES[name]
    whole, split = whole_and_split(linear, loss_fn=loss_fn, algorithms=[Penalty(penalty)])

    torch.testing.assert_close(split, whole)


@pytest.mark.parametrize("loss_fn", [by_ones, with_mean])
def test_penalty_without_a_weight_of_its_own_is_refused_where_the_loss_has_not_one(loss_fn):
    penalty = Penalty(lambda state: state.outputs.square().sum().sqrt())
    options = {"loss_fn": loss_fn, "algorithms": [penalty], "max_duration": "1ep"}

    with pytest.raises(SplitLossError, match="is changed by an algorithm, and it is unknown"):
        make_trainer(linear(), RARE, microbatch_size=2, **options).fit()


CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5, 0.0, 4.0])
NEXT = {
    "plain": lambda outputs, targets: cross_entropy(outputs[..., :-1], targets[:, 1:]),
    "flattened": lambda outputs, targets: cross_entropy(
        outputs[..., :-1].mT.flatten(0, 1), targets[..., 1:].flatten()
    ),
    "weighted": lambda outputs, targets: cross_entropy(
        outputs[..., :-1], targets[:, 1:], CLASS_WEIGHTS
    ),
}
CROPPED = [(TOKENS[:1, :3], PADDED[:1, :3]), *PARTS[1:]]
"""The parts, padded to lengths of their own."""


@pytest.mark.parametrize("name", NEXT)
@pytest.mark.parametrize(
    ("parts", "options"),
    [
        (WHOLE, {"grad_accum": 3}),
        (PARTS, {"accumulate_batches": 2}),
        (CROPPED, {"accumulate_batches": 2}),
        (CROPPED, {"accumulate_batches": 2, "microbatch_size": 1}),
        (WHOLE, {"parallel": DDP(shards=2)}),
    ],
)
def test_loss_of_the_next_token_is_that_of_the_whole(name, parts, options):
    torch.testing.assert_close(
        gradient_of(parts, loss_fn=NEXT[name], **options),
        gradient_of(WHOLE, loss_fn=NEXT[name]),
    )


@pytest.mark.parametrize("name", NEXT)
@pytest.mark.parametrize("parts", [WHOLE, CROPPED])
def test_losses_of_parts_add_up_to_that_of_the_whole_without_a_correction(name, parts):
    watch = Watch(Event.AFTER_BACKWARD, read=lambda state: state.loss.item())
    trainer = make_trainer(
        seeded(lambda: Bigram(7, 7)),
        parts,
        loss_fn=NEXT[name],
        callbacks=watch,
        accumulate_batches=len(parts),
        microbatch_size=1,
        max_duration="1ep",
    )

    loss = trainer.fit().loss.item()

    assert len(watch.values) == 4
    assert sum(watch.values) == pytest.approx(loss)
    model = seeded(lambda: Bigram(7, 7))
    assert loss == pytest.approx(NEXT[name](model(TOKENS), PADDED).item())
    assert trainer._run.loss_shares.unit is None


@pytest.mark.parametrize("size", [1, 2])
def test_targets_taken_by_the_size_of_a_part_are_weighted_once_it_is_computed(size):
    trainer = make_trainer(seeded(linear), RARE, microbatch_size=size, loss_fn=sliced)
    trainer.fit()

    assert trainer._run.loss_shares.unit is not None


def draws(outputs, targets):
    return cross_entropy(outputs + torch.randn_like(outputs), targets)


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs, targets):
        self.mean.lerp_(outputs.detach().mean(), 0.5)
        return cross_entropy(outputs * (1 + self.mean), targets)


def checks(outputs, targets):
    assert (targets >= 0).all()
    return cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss_fn", "reason"),
    [
        (lambda o, t: cross_entropy(o, t, reduction="sum") / max(1, (t == 1).sum()), "reads a val"),
        (lambda o, t: sliced(o, t) + o.square().mean(), "depends on the size of the batch"),
        (draws, "draws random numbers"),
        (Writes(), "changes its buffers"),
        (checks, "an if or an assert"),
    ],
)
def test_refuses_a_loss_with_the_first_reason_before_any_weight_changes(loss_fn, reason):
    trainer = make_trainer(seeded(linear), RARE, microbatch_size=1, loss_fn=loss_fn)

    with pytest.raises(SplitLossError, match=reason):
        trainer.fit()

    assert same(weights(trainer.state.model), weights(seeded(linear)))


class Learned(nn.Module):
    """A loss with weights that are learned, after Kendall et al. 2018."""

    def __init__(self, form):
        super().__init__()
        self.scales, self.form = nn.Parameter(torch.tensor([0.4, -0.2])), form

    def forward(self, outputs, targets):
        losses = cross_entropy(outputs, targets, ignore_index=1), outputs.square().mean()
        return self.form(losses, self.scales)


UNCERTAIN = {
    "one": lambda losses, s: torch.exp(-s[0]) * losses[0] + s[0],
    "several": lambda losses, s: sum(
        torch.exp(-x) * one + x for x, one in zip(s, losses, strict=True)
    ),
    "divided": lambda losses, s: losses[0] / (2 * s[1] ** 2) + torch.log(1 + s.square()).sum(),
    "scaled": lambda losses, s: 0.5 * ((losses[0] + s[0]) * s.exp().mean() - 1),
}


@pytest.mark.parametrize("form", UNCERTAIN)
@pytest.mark.parametrize("size", [1, 3])
def test_parameters_of_a_loss_are_constants_of_its_terms(form, size):
    def after_a_step(**options):
        loss, model = Learned(UNCERTAIN[form]), seeded(linear)
        parameters = [*model.parameters(), *loss.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        options = {"loss_fn": loss, "optimizers": optimizer, "max_duration": "1ep", **options}
        make_trainer(model, RARE, **options).fit()
        return parameters

    torch.testing.assert_close(after_a_step(microbatch_size=size), after_a_step())


class Later(nn.Module):
    """A loss that compares examples once it has been called some times, or in large batches."""

    def __init__(self, calls=0, size=0):
        super().__init__()
        self.calls, self.size = calls, size

    def forward(self, outputs, targets):
        self.calls -= torch.is_grad_enabled()
        compared = outputs.mean(0) if self.calls < 0 and len(outputs) >= self.size else 0
        return cross_entropy(outputs - compared, targets)


@pytest.mark.parametrize("loss", [Later(size=4), Later(calls=2 * 3)])
def test_refuses_what_begins_with_the_size_of_the_batch_or_in_a_later_epoch(loss):
    options = {"microbatch_size": 2, "loss_fn": loss, "max_duration": "5ep"}

    with pytest.raises(SplitLossError, match="compares the examples of a batch"):
        make_trainer(linear(), batches(12, 4), **options).fit()


def reports_half(outputs, batch):
    return 1 + (batch[1] >= 0).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_mean_over": reports_half}, "is a mean over .* Return by loss_mean_over or"),
        (
            {"loss_mean_over": "tokens", "loss_fn": nn.CrossEntropyLoss(torch.ones(7).cumsum(0))},
            "Return by",
        ),
        (
            {"loss_mean_over": "examples", "loss_fn": nn.CrossEntropyLoss(reduction="sum")},
            "CrossEntropyLoss is a sum, .* Omit the declaration",
        ),
    ],
)
@pytest.mark.parametrize("split", [{"grad_accum": 2}, {"accumulate_batches": 2}])
def test_a_declaration_is_compared_once_with_two_halves(options, message, split):
    with pytest.raises(SplitLossError, match=message):
        fit(train_dataloader=[(TOKENS, PADDED)] * 2, **options, **split)


WEIGHED = nn.CrossEntropyLoss(torch.arange(1.0, CLASSES + 1))
SUMMED = nn.CrossEntropyLoss(reduction="sum")


@pytest.mark.parametrize(
    "algorithm", [LabelSmoothing(), MixUp(), MixUp(per_sample=True, interpolate_loss=True)], ids=str
)
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (WEIGHED, "of which it is not the weighted mean"),
        (SUMMED, "is a sum, .* Omit the declaration"),
        (cross_entropy, None),
    ],
)
def test_a_declaration_is_compared_with_the_loss_before_an_algorithm_changes_it(
    algorithm, loss, message
):
    images, labels = examples(8)
    options = {"loss_fn": loss, "algorithms": algorithm, "max_duration": "1ba"}
    data = [(images, labels.masked_fill(torch.arange(8) % 4 == 1, IGNORED))]
    trainer = make_trainer(linear(), data, loss_mean_over="tokens", grad_accum=2, **options)

    with nullcontext() if message is None else pytest.raises(SplitLossError, match=message):
        trainer.fit()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_flat_targets_of_several_lengths_are_evaluated(reduction):
    def loss_fn(outputs, targets):
        flat, lengths = targets
        steps = outputs.log_softmax(-1).transpose(0, 1)
        sizes = torch.full_like(lengths, steps.shape[0])
        return nn.functional.ctc_loss(steps, flat, sizes, lengths, reduction=reduction)

    def part(*lengths):
        flat = torch.arange(sum(lengths)) % 3 + 1
        inputs = torch.randn(len(lengths), 9, 4, generator=torch.Generator().manual_seed(0))
        return {"inputs": inputs, "flat": flat, "lengths": torch.tensor(lengths)}

    data, model = [part(1, 3, 2), part(2, 4)], nn.Linear(4, 4)
    keys = {"input_key": "inputs", "target_key": ("flat", "lengths")}
    losses = [loss_fn(model(one["inputs"]), (one["flat"], one["lengths"])).item() for one in data]
    expected = losses[0] * 3 + losses[1] * 2

    found = make_trainer(model, data, loss_fn=loss_fn, **keys).eval(data)["eval"]["loss"]

    assert found == pytest.approx(expected / 5 if reduction == "mean" else sum(losses))
