"""Losses of class indices keep their meaning where an algorithm replaces them by probabilities.

A loss of any kind is checked once for each run.
"""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from composable import Event, Key, State
from composable.algorithms import CutMix, LabelSmoothing, MixUp
from composable.batches.spec import BatchSpec
from composable.functional import cutmix, mixup
from composable.losses.classes import OncePerLoss
from composable.losses.loss import TargetLoss
from tests.support.campaign import each_pair
from tests.support.meaning import hyperparameters_of
from tests.support.models import CLASSES, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd

WEIGHT = torch.tensor([1.0, 10.0, 0.1])
LOSSES = {
    "plain": cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "weight": nn.CrossEntropyLoss(weight=WEIGHT),
    "function of weight": partial(cross_entropy, weight=WEIGHT),
    "ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighted sum": nn.CrossEntropyLoss(reduction="sum", weight=WEIGHT),
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "all": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2, label_smoothing=0.2),
}
NEXT_TO_NOTHING = {
    "smoothing": [LabelSmoothing(0.0)],
    "mixup": [MixUp(1e-6)],
    "mixup per sample": [MixUp(1e-6, per_sample=True)],
    "mixup of losses": [MixUp(1e-6, interpolate_loss=True)],
    "mixup of losses per sample": [MixUp(1e-6, interpolate_loss=True, per_sample=True)],
    "mixup and smoothing": [MixUp(1e-6), LabelSmoothing(0.0)],
    "all per sample": [
        MixUp(1e-6, interpolate_loss=True, per_sample=True),
        LabelSmoothing(0.0),
    ],
}


def images(loss_fn, padded, dims):
    ignored = getattr(loss_fn, "ignore_index", -100)
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(CLASSES, (6, 4, 4)[: dims + 1], generator=draw)
    if padded:
        targets[:2] = ignored
    return torch.rand(6, 1, 4, 4, generator=draw), targets


def model(dims):
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if dims == 0 else []
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, CLASSES, 3, padding=1), *flat))


def trainer_of(loss_fn, algorithms, *loader, dims=0, **options):
    return make_trainer(
        model(dims),
        loss_fn=loss_fn,
        train_dataloader=[*loader],
        algorithms=[*algorithms],
        **{"max_duration": "2ba", **options},
    )


def trained(loss_fn, batch, dims=0, algorithms=()):
    losses = Watch(Event.BATCH_END, read=lambda s: s.loss)
    trainer = trainer_of(loss_fn, algorithms, batch, dims=dims, callbacks=[losses])
    trainer.fit()
    return losses.values, weights(trainer.state.model)


@pytest.mark.parametrize(
    ("loss", "algorithms", "shape"),
    each_pair(LOSSES, NEXT_TO_NOTHING, [(False, 0), (True, 0), (True, 2)]),
)
def test_next_to_nothing_trains_as_without_it(loss, algorithms, shape):
    padded, dims = shape
    batch = images(LOSSES[loss], padded, dims)
    expected = trained(LOSSES[loss], batch, dims)

    found = trained(LOSSES[loss], batch, dims, NEXT_TO_NOTHING[algorithms])

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "mix", "padded"),
    each_pair(LOSSES, [MixUp(1.0), CutMix(), MixUp(1.0, per_sample=True)], [False, True]),
)
def test_interpolated_targets_train_as_interpolated_losses(mix, loss, padded):
    batch = images(LOSSES[loss], padded, 0)
    expected = trained(LOSSES[loss], batch, 0, [attrs.evolve(mix, interpolate_loss=True)])

    found = trained(LOSSES[loss], batch, 0, [mix])

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interpolated", [False, True])
@pytest.mark.parametrize(
    "mix",
    [
        *(MixUp(0.4, per_sample=each) for each in (False, True)),
        *(CutMix(per_sample=each) for each in (False, True)),
        CutMix(0.5, uniform_sampling=True),
    ],
)
def test_pairs_train_by_the_mean_of_the_losses_of_both(mix, interpolated):
    batch, net = images(None, False, 0), model(0)
    function = {MixUp: mixup, CutMix: cutmix}[type(mix)]
    options, optimizer = hyperparameters_of(mix, "interpolate_loss"), sgd(net.parameters())
    for step in range(2):
        generator = Key(17).fold(mix.name, step).generator()
        mixed = function(*batch, **options, generator=generator)
        one, other = (
            cross_entropy(net(mixed.inputs), targets, reduction="none")
            for targets in (mixed.targets, mixed.partner_targets)
        )
        (mixed.weight * one + (1 - mixed.weight) * other).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    algorithm = attrs.evolve(mix, interpolate_loss=interpolated)

    _, found = trained(cross_entropy, batch, algorithms=[algorithm])

    torch.testing.assert_close(found, weights(net))


@pytest.mark.parametrize(
    "mix", [[], [MixUp(1.0)], [MixUp(1.0, interpolate_loss=True)], [CutMix(per_sample=True)]]
)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_smoothing_is_that_of_the_loss(mix, padded, weight):
    inside = nn.CrossEntropyLoss(weight, label_smoothing=0.3)
    batch = images(inside, padded, 0)

    found = trained(nn.CrossEntropyLoss(weight), batch, 0, [*mix, LabelSmoothing(0.3)])

    torch.testing.assert_close(found, trained(inside, batch, 0, mix), rtol=1e-4, atol=1e-5)


def weighted(outputs, targets):
    return cross_entropy(outputs, targets, weight=WEIGHT)


def indices_only(outputs, targets):
    return -outputs.log_softmax(1).gather(1, targets[:, None]).mean()


@pytest.mark.parametrize(
    ("algorithm", "loss_fn", "message"),
    [
        (LabelSmoothing(), weighted, "loss_fn gives .* itself as loss_fn"),
        (MixUp(), weighted, "loss_fn gives .* interpolate_loss=True"),
        (CutMix(), nn.MultiMarginLoss(), "fails for class probabilities .* interpolate_loss=True"),
        (LabelSmoothing(), indices_only, "fails for class probabilities"),
        (MixUp(interpolate_loss=True, per_sample=True), weighted, "per_sample=False"),
    ],
)
def test_rejects_loss_that_differs_for_probabilities(algorithm, loss_fn, message):
    def fresh(outputs, targets):  # a loss is compared once
        return loss_fn(outputs, targets)

    with pytest.raises(ValueError, match=message):
        trained(fresh, images(None, False, 0), 0, [algorithm])


def test_rejects_outputs_that_are_not_logits():
    def loss_fn(outputs, targets):
        return cross_entropy(outputs["logits"], targets)

    net = model(0)
    net.register_forward_hook(lambda module, args, outputs: {"logits": outputs})
    trainer = make_trainer(net, [INDICES], loss_fn=loss_fn, algorithms=MixUp())

    with pytest.raises(TypeError, match=r"must be logits of .*not a dict.*interpolate_loss=True"):
        trainer.fit()


@pytest.mark.parametrize("algorithm", [MixUp(), CutMix(), LabelSmoothing()])
def test_rejects_integers_that_are_no_classes_of_the_outputs(algorithm):
    def first_output(outputs, targets):
        return mse_loss(outputs[:, 0], targets.float())

    inputs, targets = images(None, False, 0)
    with pytest.raises(ValueError, match=r"here up to .* classes; .*targets\.float\(\)"):
        trained(first_output, (inputs, targets + CLASSES), 0, [algorithm])


@pytest.mark.parametrize(
    ("loss_fn", "targets", "message"),
    [
        (nn.MSELoss(), torch.rand(6, CLASSES), "loss of classes, and loss_fn=MSELoss"),
        (mse_loss, torch.eye(CLASSES).repeat(2, 1), "loss of classes, and loss_fn=mse_loss"),
        (partial(nn.functional.l1_loss), torch.rand(6, CLASSES), "loss_fn=l1_loss"),
        (lambda o, t: mse_loss(o, t), torch.randn(6, CLASSES), "that sum to 1 over dimension 1"),
        (
            lambda o, t: mse_loss(o[:, 0], t),
            torch.tensor([1.0, 0, 0, 0, 0, 0]),
            r"logits .* of torch.float32 .*\(6,\)",
        ),
        (lambda o, t: mse_loss(o[:, :1], t), torch.ones(6, 1), "num_classes=3 must match the 1"),
    ],
)
def test_smoothing_rejects_targets_that_are_no_classes(loss_fn, targets, message):
    with pytest.raises(ValueError, match=message):
        trained(loss_fn, (images(None, False, 0)[0], targets), 0, [LabelSmoothing()])


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_smooths_logits_with_classes_in_the_last_dimension(padded):
    tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(1, 0).masked_fill(torch.arange(5) > 2, -100) if padded else tokens

    def run(smoothing, algorithms):
        def loss_fn(outputs, targets):
            options = {"label_smoothing": smoothing}
            return cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), **options)

        trainer = make_trainer(
            seeded(lambda: nn.Embedding(7, 7)),
            loss_fn=loss_fn,
            train_dataloader=[(tokens, targets)],
            algorithms=algorithms,
        )
        trainer.fit()
        return weights(trainer.state.model)

    torch.testing.assert_close(run(0.0, [LabelSmoothing(0.3)]), run(0.3, []))


def test_known_cross_entropy_of_logits_with_classes_last_is_rejected():
    spec = BatchSpec()
    tokens = torch.randint(7, (4, 5))
    state = State(
        model=nn.Linear(1, 1),
        loss_fn=TargetLoss(cross_entropy, spec),
        outputs=torch.randn(4, 5, 7),
        batch=(tokens, tokens),
    )

    with pytest.raises(ValueError, match=r"classes in dimension 1 .*transpose\(1, -1\)"):
        LabelSmoothing()(Event.BEFORE_LOSS, state)


SEVERAL = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).repeat(3, 1)


def test_refuses_several_labels_in_any_batch():
    one = torch.eye(CLASSES).repeat(2, 1)
    inputs = images(None, False, 0)[0]
    loss_fn = nn.functional.binary_cross_entropy_with_logits
    trainer = trainer_of(loss_fn, [LabelSmoothing()], (inputs, one), (inputs, SEVERAL))

    with pytest.raises(
        ValueError, match=r"LabelSmoothing needs class indices, .* sums from 2 to 2"
    ):
        trainer.fit()
    assert trainer.state.timestamp.batch == 1


@pytest.mark.parametrize("algorithm", [LabelSmoothing(0.0), MixUp(1e-6)])
def test_a_class_index_below_0_is_no_label_whatever_the_loss_ignores(algorithm):
    inputs, targets = images(None, True, 2)

    def loss_fn(outputs, targets):
        return cross_entropy(outputs, targets, ignore_index=-1)

    batch = inputs, targets.clamp(min=-1)
    expected = trained(loss_fn, batch, 2)

    torch.testing.assert_close(trained(loss_fn, batch, 2, [algorithm]), expected)


# --- a loss of any kind ---


@dataclass
class Unhashable:
    calls: int = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return cross_entropy(outputs, targets)


class Slots:
    __slots__ = ()

    def __call__(self, outputs, targets):
        return cross_entropy(outputs, targets)


class Method:
    def loss(self, outputs, targets):
        return cross_entropy(outputs, targets)


@dataclass(frozen=True)
class Weighted:
    """Losses that are equal for any weight."""

    weight: torch.Tensor | None = field(compare=False)

    def __call__(self, outputs, targets):
        return cross_entropy(outputs, targets, self.weight)


KINDS = {
    "dataclass": Unhashable(),
    "slots": Slots(),
    "method": Method().loss,
    "operator": torch.ops.aten.cross_entropy_loss,
    "partial": partial(Slots()),
    "lambda": lambda outputs, targets: cross_entropy(outputs, targets),
}
ALGORITHMS = {
    "smoothing": [LabelSmoothing()],
    "mixup": [MixUp(1.0)],
    "cutmix": [CutMix()],
    "smoothing of pairs": [MixUp(1.0), LabelSmoothing()],
    "smoothing of pairs of losses": [MixUp(1.0, interpolate_loss=True), LabelSmoothing()],
    "mixup of losses of examples": [MixUp(1.0, interpolate_loss=True, per_sample=True)],
}
CLASS_INDICES = torch.arange(6) % CLASSES
INDICES = images(None, False, 0)[0], CLASS_INDICES
PROBABILITIES = INDICES[0], torch.eye(CLASSES)[CLASS_INDICES]


@pytest.mark.parametrize("algorithms", ALGORITHMS)
@pytest.mark.parametrize("loss", KINDS)
def test_any_kind_of_loss_trains_as_cross_entropy(loss, algorithms):
    found, expected = (
        trained(loss_fn, INDICES, algorithms=ALGORITHMS[algorithms])
        for loss_fn in (KINDS[loss], cross_entropy)
    )

    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", ["dataclass", "slots", "method", "partial"])
def test_copied_states_compute_the_same_loss(loss):
    trainer = trainer_of(KINDS[loss], [LabelSmoothing()], INDICES)
    trainer.fit(duration="1ba")
    state = trainer.state.evolve(batch=INDICES, outputs=torch.randn(6, CLASSES))
    copies = [state, copy.deepcopy(state), pickle.loads(pickle.dumps(state))]

    smoothed = [LabelSmoothing()(Event.BEFORE_LOSS, one) for one in copies]

    first, *others = [one.loss_fn(one.outputs, one.batch).item() for one in smoothed]
    assert others == [first, first]


def test_loss_is_compared_once_for_each_run():
    loss, steps = Unhashable(), 2

    for run in (1, 2):
        trained(loss, INDICES, algorithms=[LabelSmoothing()])
        assert loss.calls == run * (4 + steps)


@pytest.mark.parametrize("mix", [[], [MixUp(1.0, interpolate_loss=True)]])
def test_one_check_does_not_replace_another(mix):
    with pytest.raises(ValueError, match="for class indices"):
        trainer_of(Weighted(WEIGHT), [*mix, LabelSmoothing()], PROBABILITIES, INDICES).fit()


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda o, t: cross_entropy(o, t, reduction="none"), r"tensor of shape \(6,\) and must"),
        (lambda o, t: 1.0, "returned float and must"),
    ],
)
@pytest.mark.parametrize("algorithms", [[], *ALGORITHMS.values()])
def test_rejects_losses_that_are_no_scalars(loss_fn, message, algorithms):
    with pytest.raises((TypeError, ValueError), match=message):
        trained(loss_fn, INDICES, algorithms=algorithms)


def test_equal_losses_are_compared_each():
    right, wrong = Weighted(None), Weighted(WEIGHT)
    assert right == wrong
    trained(right, INDICES, algorithms=[LabelSmoothing()])

    with pytest.raises(ValueError, match="for class indices"):
        trained(wrong, INDICES, algorithms=[LabelSmoothing()])


def test_compared_loss_is_freed_with_its_run():
    loss = Unhashable()
    trainer = trainer_of(loss, [LabelSmoothing()], INDICES)
    trainer.fit()
    freed = weakref.ref(loss), weakref.ref(trainer.state.model)

    del loss, trainer
    gc.collect()

    assert [reference() for reference in freed] == [None, None]


class RunningMean(nn.Module):
    """A loss with a buffer that each call moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, outputs, targets):
        self.calls += 1
        return cross_entropy(outputs * (1 + 1e-4 * self.calls), targets)


@pytest.mark.parametrize("algorithms", ALGORITHMS)
def test_checks_of_a_loss_leave_its_buffers(algorithms):
    loss = RunningMean()

    trained(loss, INDICES, algorithms=ALGORITHMS[algorithms])

    assert loss.calls == (4 if "of losses" in algorithms else 2)  # in two steps


def test_numbers_on_another_device_are_read_for_64_batches_at_once():
    once, state = OncePerLoss(), SimpleNamespace(loss_fn=Unhashable())

    def number(value):
        numbers = torch.tensor(float(value))
        return SimpleNamespace(device=torch.device("cuda"), detach=lambda: numbers)

    read = [once.read(state, number(i)) for i in range(128)]

    assert [one for one in read if one] == [[*range(64)], [*range(64, 128)]]
    assert once.read(state, torch.tensor(1.0)) == [1.0]
