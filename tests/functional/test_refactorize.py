"""A factorized layer is factorized further, and surgeries log what they replaced."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import factorize, ghost_batchnorm
from composable.utils.reproducibility import seed_context
from tests.support.tensors import randn

LAYERS = {
    "linear": lambda: nn.Linear(24, 32),
    "linear without a bias": lambda: nn.Linear(24, 32, bias=False),
    "conv": lambda: nn.Conv2d(24, 32, 3, 2, 1, padding_mode="circular"),
    "groups": lambda: nn.Conv1d(24, 32, 3, groups=4),
    "channels last": lambda: nn.Conv2d(24, 32, 3).to(memory_format=torch.channels_last),
}


def lower(model, units):
    sizes = {"min_features": 1, "min_channels": 1}
    return factorize(model, latent_features=units, latent_channels=units, **sizes)


@pytest.mark.parametrize("name", LAYERS)
def test_lower_rank_equals_that_of_the_whole_layer(name):
    with seed_context(0):
        layer = LAYERS[name]().double().eval()
    layer.register_forward_hook(lambda module, args, outputs: outputs * 2)
    pair = lower(layer, 12)

    further, direct = lower(pair, 8), lower(layer, 8)

    shape = (2, 24, 8, 8) if "conv" in name or "last" in name else (2, 24, 8)
    x = randn(*((2, 24) if "linear" in name else shape), dtype=torch.float64)
    assert_close(further(x), direct(x))
    assert further.state_dict().keys() == direct.state_dict().keys()
    assert further.reduce.weight.stride() == direct.reduce.weight.stride()
    assert further.expand.bias is layer.bias
    assert not further.training
    assert not further.reduce.training


@pytest.mark.parametrize("units", [12, 16])
def test_same_or_higher_rank_changes_nothing(units):
    pair = lower(nn.Linear(24, 32), 12)

    assert lower(pair, units) is pair


def test_frozen_pair_stays_frozen():
    pair = lower(nn.Linear(24, 32).requires_grad_(False), 12)

    assert not any(p.requires_grad for p in lower(pair, 8).parameters())


def test_replaced_modules_are_logged(logged):
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.BatchNorm2d(2))

    ghost_batchnorm(model)

    assert logged == [
        "replaced 3 modules: 2 BatchNorm1d by GhostBatchNorm1d, 1 BatchNorm2d by GhostBatchNorm2d"
    ]
