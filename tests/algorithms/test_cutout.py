"""CutOut in the loop does what the function does, with the generator of its name and step."""

import pytest
import torch
from torch import nn

from composable import Event, Key
from composable.algorithms import CutOut, MixUp
from composable.functional import cutout
from tests.helpers import CLASSES, Watch, batches, make_trainer, seeded


def images():
    return [(x.reshape(-1, 1, 6, 6), y) for x, y in batches(features=36)]


def watched(event, algorithms, **changes):
    """What the batches are at an event."""
    watch = Watch(event, read=lambda s: s.batch)
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)))
    defaults = {"train_dataloader": images(), "max_duration": "1ep"}
    make_trainer(model, algorithms=algorithms, callbacks=[watch], **{**defaults, **changes}).fit()
    return watch.values


@pytest.mark.parametrize(
    "options",
    [{}, {"per_sample": False}, {"num_holes": 2, "length": 2, "uniform_sampling": True}],
)
def test_the_inputs_are_those_of_the_function(options):
    seen = watched(Event.BATCH_START, [CutOut(**options)])

    for step, ((x, y), (inputs, targets)) in enumerate(zip(seen, images(), strict=True)):
        generator = Key(17).fold("CutOut", step).generator()
        assert torch.equal(x, cutout(inputs, **options, generator=generator))
        assert torch.equal(y, targets)


def test_no_hole_changes_nothing():
    for (x, _), (inputs, _) in zip(
        watched(Event.BATCH_START, [CutOut(num_holes=0)]), images(), strict=True
    ):
        assert torch.equal(x, inputs)


def test_it_comes_before_examples_are_mixed():
    for order in ([CutOut(), MixUp(1.0)], [MixUp(1.0), CutOut()]):
        before = watched(Event.BATCH_START, order)
        assert all((x == 0).any() for x, _ in before)


def test_evaluation_sees_the_examples_as_they_are():
    data = images()
    for x, _ in watched(Event.EVAL_BEFORE_FORWARD, [CutOut()], eval_dataloader=data):
        assert any(x is inputs for inputs, _ in data)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_holes": -1}, ValueError, "num_holes=-1 must be at least 0"),
        ({"num_holes": 1.0}, TypeError, "num_holes=1.0 must be an integer"),
        ({"length": -1}, ValueError, r"length=-1 must be at least 0"),
        ({"length": float("inf")}, ValueError, r"length=inf must be at least 0"),
        ({"length": 1.5}, ValueError, "length=1.5 must be a whole number of pixels"),
        ({"length": "a"}, TypeError, "length='a' must be a number"),
        ({"uniform_sampling": 1}, TypeError, "uniform_sampling=1 must be True or False"),
        ({"per_sample": "yes"}, TypeError, "per_sample='yes' must be True or False"),
    ],
)
def test_hyperparameters_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        CutOut(**options)


def test_an_algorithm_is_a_frozen_value():
    assert CutOut(2) == CutOut(num_holes=2)
    assert repr(CutOut(length=4)) == (
        "CutOut(num_holes=1, length=4, uniform_sampling=False, per_sample=True)"
    )
