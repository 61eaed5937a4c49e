"""RandAugment and AugMix on normalized images."""

import pytest
import torch

from composable import Event, Key, State
from composable.algorithms import AugMix, RandAugment
from composable.functional import augmix, randaugment
from tests.support.models import linear

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
each = pytest.mark.parametrize(
    ("algorithm", "function"), [(RandAugment, randaugment), (AugMix, augmix)]
)


def images():
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def augmented(algorithm, inputs):
    state = State(linear(), batch=(inputs, None), key=Key(17))
    return algorithm(mean=MEAN, std=STD)(Event.AFTER_DATALOADER, state).inputs


@each
def test_normalized_images_are_augmented_as_before_the_normalization(algorithm, function):
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))

    inputs = augmented(algorithm, (images() - mean) / std)

    expected = function(images(), generator=Key(17).fold(algorithm.__name__, 0).generator())
    assert ((inputs * std + mean - expected).abs() > 1e-4).float().mean() < 0.02


@each
@pytest.mark.parametrize(
    ("inputs", "kind"), [((255 * images()).byte(), "torch.uint8"), ((images(),), "tuple")]
)
def test_rejects_normalized_images_of_another_kind(algorithm, function, inputs, kind):
    with pytest.raises(TypeError, match=f"images must be normalized.*{kind}; pass neither mean"):
        augmented(algorithm, inputs)


@each
@pytest.mark.parametrize("targets", [torch.zeros(4, 8, 8).long(), torch.zeros(4, 2, 8, 8)])
def test_dense_targets_are_refused(algorithm, function, targets):
    state = State(linear(), batch=(images(), targets), key=Key(17))

    with pytest.raises(ValueError, match=rf"{algorithm.__name__} moves pixels.*\(4, .*data set"):
        algorithm()(Event.AFTER_DATALOADER, state)


@each
def test_a_batch_may_be_without_targets(algorithm, function):
    state = State(linear(), batch=(images(),), key=Key(17))

    assert algorithm()(Event.AFTER_DATALOADER, state).inputs.shape == (4, 3, 8, 8)
