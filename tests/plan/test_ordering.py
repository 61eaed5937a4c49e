"""What comes before what, whatever the order of the list."""

import random

import pytest

from composable import Event, Plan
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from tests.support.runs import conv_net, shuffling_loader, trainer
from tests.support.stand_ins import (
    ChannelsLast,
    GhostBatchNorm,
    LowPrecisionLayerNorm,
    ProgressiveResizing,
    RandAugment,
    Unscale,
)

EVERYTHING = [
    *(MixUp(), LabelSmoothing(), SelectiveBackprop(), BlurPool(), EMA("2ba")),
    *(GradientClipping("norm", 1.0), Unscale(), ProgressiveResizing(), RandAugment()),
    *(GhostBatchNorm(), ChannelsLast(), LowPrecisionLayerNorm()),
]


@pytest.fixture(params=range(5))
def plan(request):
    return Plan.compile(random.Random(request.param).sample(EVERYTHING, len(EVERYTHING)))


def at(plan, event):
    return [algorithm.name for algorithm in plan.transforms(event)]


def test_selection_sees_raw_examples_and_then_they_are_resized_and_augmented(plan):
    assert at(plan, Event.AFTER_DATALOADER) == [
        "SelectiveBackprop",
        "ProgressiveResizing",
        "RandAugment",
    ]


def test_mixing_comes_after_augmentation_and_label_smoothing_after_mixing(plan):
    happens = list(Event)

    assert at(plan, Event.BEFORE_TRAIN_BATCH) == ["MixUp"]
    assert happens.index(Event.AFTER_DATALOADER) < happens.index(Event.BEFORE_TRAIN_BATCH)
    assert at(plan, Event.BEFORE_LOSS) == ["MixUp", "LabelSmoothing"]


def test_surgeries_come_before_layouts_and_those_before_low_precision(plan):
    assert at(plan, Event.INIT) == [
        "BlurPool",
        "GhostBatchNorm",
        "ChannelsLast",
        "LowPrecisionLayerNorm",
    ]


def test_gradients_are_unscaled_and_then_clipped(plan):
    assert at(plan, Event.BEFORE_OPTIMIZER_STEP) == ["Unscale", "GradientClipping"]


def test_averages_are_taken_after_the_step_of_the_optimizer(plan):
    happens = list(Event)

    assert at(plan, Event.BATCH_END) == ["EMA"]
    assert happens.index(Event.BEFORE_OPTIMIZER_STEP) < happens.index(Event.AFTER_OPTIMIZER_STEP)
    assert happens.index(Event.AFTER_OPTIMIZER_STEP) < happens.index(Event.BATCH_END)


def test_the_methods_run_in_this_order_in_a_run():
    ran = []

    def note(algorithm):
        class Noted(type(algorithm)):
            __slots__ = ()

            def apply(self, event, state):
                ran.append(self.name)
                return super().apply(event, state)

        Noted.__name__ = type(algorithm).__name__
        fields = {f.name: getattr(algorithm, f.name) for f in type(algorithm).__attrs_attrs__}
        return Noted(**fields)

    chosen = [*EVERYTHING[:2], SelectiveBackprop(0.0, 1.0, interrupt=0), *EVERYTHING[3:]]
    trainer(
        conv_net(),
        shuffling_loader(images=True),
        algorithms=[note(algorithm) for algorithm in reversed(chosen)],
        max_duration="1ba",
    ).fit()

    assert ran == [
        *("BlurPool", "GhostBatchNorm", "ChannelsLast", "LowPrecisionLayerNorm"),
        *("SelectiveBackprop", "ProgressiveResizing", "RandAugment"),
        *("MixUp", "MixUp", "LabelSmoothing"),
        *("Unscale", "GradientClipping", "EMA"),
    ]
