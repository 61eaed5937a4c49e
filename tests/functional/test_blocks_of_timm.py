"""The blocks of timm: stand-ins with the names, attributes and formulas of its classes."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import (
    NoEffectWarning,
    alibi,
    gated_linear_units,
    ghost_batchnorm,
    stochastic_depth,
)


class BatchNormAct2d(nn.BatchNorm2d):
    """A batch norm with dropout and an activation, in a forward method of its own."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Dropout(0.0), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class Block(nn.Module):
    """A block of a vision transformer: two residuals, one after the other."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class ConvNeXtBlock(nn.Module):
    """A block whose shortcut can be a layer."""

    def __init__(self):
        super().__init__()
        self.conv_dw, self.shortcut, self.drop_path = nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Identity()

    def forward(self, x):
        return self.drop_path(self.conv_dw(x)) + self.shortcut(x)


class InvertedResidual(nn.Module):
    """A block of EfficientNet, with or without a shortcut."""

    def __init__(self, has_skip=True):
        super().__init__()
        self.has_skip, self.conv, self.drop_path = has_skip, nn.Conv2d(4, 4, 1), nn.Identity()

    def forward(self, x):
        y = self.conv(x)
        return self.drop_path(y) + x if self.has_skip else y


NAMES = {
    BatchNormAct2d: "timm.layers.norm_act",
    Block: "timm.models.vision_transformer",
    ConvNeXtBlock: "timm.models.convnext",
    InvertedResidual: "timm.models._efficientnet_blocks",
}
for kind, module in NAMES.items():
    kind.__module__ = module


def images(count=6):
    return torch.randn(count, 4, 3, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize(
    ("kind", "shortcut"),
    [(Block, lambda x: x), (ConvNeXtBlock, torch.tanh), (InvertedResidual, lambda x: x)],
)
def test_dropped_block_is_its_shortcut(kind, shortcut, method):
    block, x = kind(), images()
    new = stochastic_depth(block, method=method, drop_rate=1.0)
    half = stochastic_depth(block, method=method, drop_rate=0.5).eval()

    assert_close(new(x), shortcut(x))
    assert_close(half(x), (block(x) + shortcut(x)) / 2)


def test_blocks_without_a_shortcut_are_not_dropped():
    model = nn.Sequential(InvertedResidual(False), InvertedResidual(), InvertedResidual(False))
    new = stochastic_depth(model, drop_rate=0.5)

    assert [type(block).__name__.startswith("Stochastic") for block in new] == [False, True, False]
    assert new[1].stochastic_depth.rate == 0.5  # the last of those that are dropped


@pytest.mark.parametrize(
    ("operate", "advice"),
    [
        (stochastic_depth, r"target=MyBlock.*target=ResidualBlock\(MyBlock"),
        (gated_linear_units, r"register_gated_linear_units\(MyBlock, linear=.*activation="),
        (partial(alibi, max_sequence_length=2), r"@.*register_alibi\(MyAttention\).*def convert\("),
    ],
)
def test_warning_shows_how_to_describe_a_block(operate, advice):
    with pytest.warns(NoEffectWarning, match=f"(?s){advice}"):
        operate(nn.Linear(2, 2))


@pytest.mark.parametrize("count", [6, 7, 2])
def test_ghost_norm_keeps_the_activation(count):
    norm, x = BatchNormAct2d(4), images(count)
    nn.init.normal_(norm.bias)
    new = ghost_batchnorm(copy.deepcopy(norm), ghost_batch_size=2)
    sizes = [count % 2, *[2] * (count // 2)][::-1]
    expected = torch.cat([copy.deepcopy(norm)(part) for part in x.split([n for n in sizes if n])])

    assert_close(new(x.clone()), expected)
    assert type(new).__name__ == "GhostBatchNormAct2d"
    assert new.running_mean.any()
    assert_close(
        new.eval()(x.clone()),
        new.act(
            (x - new.running_mean.view(-1, 1, 1))
            / (new.running_var.view(-1, 1, 1) + new.eps).sqrt()
            * new.weight.view(-1, 1, 1)
            + new.bias.view(-1, 1, 1)
        ),
    )
