"""Factorized layers with weights that are fitted approximately, or drawn."""

import pytest
import torch
from torch import nn

from composable.functional import factorize
from tests.support.models import seeded

LAYERS = [
    lambda: nn.Linear(96, 64),
    lambda: nn.Conv2d(64, 96, 3, padding=1),
    lambda: nn.Conv1d(64, 128, 3, groups=2, dtype=torch.float64),
]
OPTIONS = {"min_features": 0, "min_channels": 0}


def generator():
    return torch.Generator().manual_seed(3)


def decaying(layer):
    """Give the weight singular values that decay, as those of trained layers do."""
    with torch.no_grad():
        matrix = layer.weight.flatten(1)
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        s = 1 / (1 + torch.arange(len(s), dtype=s.dtype))
        layer.weight.copy_((u * s @ vh).reshape(layer.weight.shape))
    return layer


@pytest.mark.parametrize("build", LAYERS)
def test_randomized_fit_is_nearly_the_best(build):
    layer = decaying(seeded(build))
    state = torch.get_rng_state()

    best, near, again = (factorize(layer, init=i, **OPTIONS) for i in ("svd", *2 * ["randomized"]))

    error, least = (torch.linalg.vector_norm(n.weight - layer.weight) for n in (near, best))
    assert least <= error * (1 + 1e-5)
    assert error < 1.02 * least
    assert torch.equal(near.weight, again.weight)
    assert torch.equal(torch.get_rng_state(), state)
    assert near.reduce.weight.shape == best.reduce.weight.shape


@pytest.mark.parametrize("build", LAYERS)
def test_random_weights_are_drawn_as_new_layers_draw_them(build):
    layer = seeded(build)

    new, again = (factorize(layer, init="random", generator=generator(), **OPTIONS) for _ in "ab")

    for part in (new.reduce, new.expand):
        bound = part.weight[0].numel() ** -0.5
        assert 0.8 * bound < part.weight.abs().max() <= bound
        assert part.weight.dtype == layer.weight.dtype
    assert new.bias is layer.bias
    assert torch.equal(new.weight, again.weight)


def test_random_weights_need_no_values_to_fit():
    layer = nn.Linear(64, 64, device="meta")

    assert factorize(layer, init="random", min_features=0).reduce.weight.is_meta
    with pytest.raises(ValueError, match="must have values"):
        factorize(layer, min_features=0)
