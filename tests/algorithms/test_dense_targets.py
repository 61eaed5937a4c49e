"""Targets with a value for each pixel move with the images, or are refused."""

import pytest
import torch

from composable import Event, Key, State
from composable.algorithms import (
    AlternatingFlip,
    AugMix,
    ColOut,
    FixRes,
    ProgressiveResizing,
    RandAugment,
    RandomTranslation,
)
from composable.batches.spec import BatchSpec
from tests.support.models import linear

IMAGES, INDICES = (
    torch.rand(6, 3, 8, 12, generator=torch.Generator().manual_seed(0)),
    torch.arange(6),
)
MASKS = IMAGES[:, 0] > 0.5


def changed(algorithm, batch, **fields):
    """Return the state after an algorithm has acted on a batch."""
    event = min(algorithm.events, key=list(Event).index)
    state = State(linear(), batch=batch, key=Key(17), max_duration="4ba", **fields)
    return algorithm(event, state)


CROP = ProgressiveResizing("crop", resize_targets=True)


@pytest.mark.parametrize("algorithm", [AlternatingFlip(), ColOut(), CROP, RandomTranslation(3)])
def test_targets_of_each_pixel_move_with_the_images(algorithm):
    new = changed(algorithm, (IMAGES, MASKS, INDICES))

    assert torch.equal(new.targets, new.inputs[:, 0] > 0.5)
    assert not torch.equal(new.targets, MASKS)
    assert new.batch[2] is INDICES


@pytest.mark.parametrize("algorithm", [AlternatingFlip(index_key="index"), RandomTranslation(3)])
def test_targets_of_each_pixel_among_others_move_alone(algorithm):
    batch = {"x": IMAGES, "mask": MASKS, "y": INDICES, "index": INDICES}

    new = changed(algorithm, batch, batch_spec=BatchSpec("x", ("mask", "y")))

    assert torch.equal(new.batch["mask"], new.inputs[:, 0] > 0.5)
    assert not torch.equal(new.batch["mask"], MASKS)
    assert new.batch["y"] is INDICES


def test_targets_that_are_no_tensors_stay():
    targets = {"label": INDICES}

    new = changed(ColOut(), (IMAGES, targets))

    assert new.inputs.shape == (6, 3, 7, 10)
    assert new.targets is targets


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (FixRes(), "FixRes can't resize targets"),
        (ProgressiveResizing("crop"), "uncropped targets .*resize_targets=True"),
        *((one(), rf"{one.__name__} moves pixels.*data set") for one in (RandAugment, AugMix)),
    ],
)
@pytest.mark.parametrize("targets", [MASKS.long(), IMAGES[:, :2]])
def test_targets_of_each_pixel_that_cannot_move_are_refused(algorithm, targets, message):
    with pytest.raises(ValueError, match=message) as caught:
        changed(algorithm, (IMAGES, targets))

    assert str(tuple(targets.shape)) in str(caught.value)
