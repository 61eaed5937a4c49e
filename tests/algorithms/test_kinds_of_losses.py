"""A loss of any kind is checked once for each run by the algorithms that replace its targets."""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import CutMix, LabelSmoothing, MixUp
from composable.losses.classes import OncePerLoss
from tests.support.models import CLASSES, seeded, weights
from tests.support.runs import make_trainer

WEIGHT = torch.tensor([1.0, 10.0, 0.1])


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


LOSSES = {
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
DRAW = torch.Generator().manual_seed(0)
IMAGES, CLASS_INDICES = torch.rand(6, 1, 4, 4, generator=DRAW), torch.arange(6) % CLASSES
INDICES = IMAGES, CLASS_INDICES
PROBABILITIES = IMAGES, torch.eye(CLASSES)[CLASS_INDICES]


def trainer_of(loss_fn, algorithms, *batches, **options):
    return make_trainer(
        seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))),
        loss_fn=loss_fn,
        train_dataloader=list(batches or [INDICES, INDICES]),
        algorithms=algorithms,
        **{"max_duration": "1ep", **options},
    )


def trained(*args):
    trainer = trainer_of(*args)
    trainer.fit()
    return weights(trainer.state.model)


@pytest.mark.parametrize("algorithms", ALGORITHMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_any_kind_of_loss_trains_as_cross_entropy(loss, algorithms):
    expected = trained(cross_entropy, ALGORITHMS[algorithms])

    torch.testing.assert_close(trained(LOSSES[loss], ALGORITHMS[algorithms]), expected)


@pytest.mark.parametrize("loss", ["dataclass", "slots", "method", "partial"])
def test_copied_states_compute_the_same_loss(loss):
    trainer = trainer_of(LOSSES[loss], [LabelSmoothing()])
    trainer.fit(duration="1ba")
    state = trainer.state.evolve(batch=INDICES, outputs=torch.randn(6, CLASSES))
    copies = [state, copy.deepcopy(state), pickle.loads(pickle.dumps(state))]

    smoothed = [LabelSmoothing()(Event.BEFORE_LOSS, one) for one in copies]

    first, *others = [one.loss_fn(one.outputs, one.batch).item() for one in smoothed]
    assert others == [first, first]


def test_loss_is_compared_once_for_each_run():
    loss = Unhashable()
    steps = 4

    for run in (1, 2):
        trained(loss, [LabelSmoothing()], *[INDICES] * steps)
        assert loss.calls == run * (4 + steps)


@pytest.mark.parametrize("mix", [[], [MixUp(1.0, interpolate_loss=True)]])
def test_one_check_does_not_replace_another(mix):
    with pytest.raises(ValueError, match="for class indices"):
        trained(Weighted(WEIGHT), [*mix, LabelSmoothing()], PROBABILITIES, INDICES)


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
        trained(loss_fn, algorithms)


def test_equal_losses_are_compared_each():
    right, wrong = Weighted(None), Weighted(WEIGHT)
    assert right == wrong
    trained(right, [LabelSmoothing()])

    with pytest.raises(ValueError, match="for class indices"):
        trained(wrong, [LabelSmoothing()])


def test_compared_loss_is_freed_with_its_run():
    loss = Unhashable()
    trainer = trainer_of(loss, [LabelSmoothing()])
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

    trained(loss, ALGORITHMS[algorithms])

    assert loss.calls == (4 if "of losses" in algorithms else 2)  # in two steps


@pytest.mark.filterwarnings("ignore:the run resumed from")
@pytest.mark.parametrize("algorithms", ALGORITHMS)
def test_a_loss_with_buffers_resumes_exactly(algorithms, tmp_path):
    def run(**options):
        loss = RunningMean()
        trainer = trainer_of(loss, ALGORITHMS[algorithms], check_effects=False, **options)
        trainer.fit()
        return [*trainer.state.model.state_dict().values(), *loss.state_dict().values()]

    run(max_duration="3ba", save_folder=tmp_path)  # within the second epoch
    resumed = run(max_duration="5ba", load_path=tmp_path)
    assert all(map(torch.equal, resumed, run(max_duration="5ba")))


def test_numbers_on_another_device_are_read_for_64_batches_at_once():
    once, state = OncePerLoss(), SimpleNamespace(loss_fn=Unhashable())

    def number(value):
        numbers = torch.tensor(float(value))
        return SimpleNamespace(device=torch.device("cuda"), detach=lambda: numbers)

    read = [once.read(state, number(i)) for i in range(128)]

    assert [one for one in read if one] == [[*range(64)], [*range(64, 128)]]
    assert once.read(state, torch.tensor(1.0)) == [1.0]
