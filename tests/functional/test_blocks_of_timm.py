"""The blocks of timm and torchvision: stand-ins with the names and formulas of their classes."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import (
    dropout,
    layer_norm,
    linear,
    rms_norm,
    scaled_dot_product_attention,
    softmax,
)
from torch.testing import assert_close

import composable.functional as F


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


class LayerNorm(nn.LayerNorm):
    """A layer norm with a forward method of its own, and another default."""

    def __init__(self, channels, eps=1e-6):
        super().__init__(channels, eps=eps)

    def forward(self, x):
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RmsNorm(nn.Module):
    """An RMS norm of no class of torch."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.normalized_shape, self.eps = (channels,), eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class WindowAttention(nn.Module):
    """Attention that calls torch's only if it is set to, and normalizes if it has a norm."""

    def __init__(self, q_norm=None, fused=False):
        super().__init__()
        self.num_heads, self.fused_attn = 2, fused
        self.qkv = nn.Linear(8, 24)
        self.q_norm = nn.Identity() if q_norm is None else q_norm

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.q_norm(k)
        if self.fused_attn:
            x = scaled_dot_product_attention(q, k, v, mask)
        else:
            x = (q @ k.mT / 2 + (0 if mask is None else mask)).softmax(-1) @ v
        return x.transpose(1, 2).flatten(2)


class ShiftedWindowAttention(nn.Module):
    """Attention of torchvision's Swin, which is a function of products."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv = 2, nn.Linear(8, 24)
        self.attention_dropout = 0.0

    def forward(self, x):
        qkv = linear(x, self.qkv.weight, self.qkv.bias).reshape(*x.shape[:2], 3, 2, 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q = q * 4**-0.5
        attn = q.matmul(k.transpose(-2, -1)) + torch.arange(5.0)
        attn = softmax(attn, dim=-1)
        attn = dropout(attn, p=self.attention_dropout, training=self.training)
        return attn.matmul(v).transpose(1, 2).reshape(x.shape)


class EncoderBlock(nn.Module):
    """A block of torchvision's vision transformer, which calls `nn.MultiheadAttention`."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.need_weights = 2, False
        self.self_attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.self_attention(x, x, x, need_weights=self.need_weights)[0]
        return x + self.mlp(x)


class SwinTransformerBlock(nn.Module):
    """A block of torchvision's Swin, which has a layer of the name of the method."""

    def __init__(self):
        super().__init__()
        self.mlp, self.stochastic_depth = nn.Linear(3, 3), nn.Identity()

    def forward(self, x):
        return x + self.stochastic_depth(self.mlp(x))


NAMES = {
    BatchNormAct2d: "timm.layers.norm_act",
    Block: "timm.models.vision_transformer",
    ConvNeXtBlock: "timm.models.convnext",
    InvertedResidual: "timm.models._efficientnet_blocks",
    LayerNorm: "timm.layers.norm",
    LayerNorm2d: "timm.layers.norm",
    RmsNorm: "timm.layers.norm",
    WindowAttention: "timm.models.swin_transformer",
    EncoderBlock: "torchvision.models.vision_transformer",
    ShiftedWindowAttention: "torchvision.models.swin_transformer",
    SwinTransformerBlock: "torchvision.models.swin_transformer",
}
for kind, module in NAMES.items():
    kind.__module__ = module


def images(count=6):
    return torch.randn(count, 4, 3, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize(
    ("kind", "shortcut"),
    [
        (Block, lambda x: x),
        (ConvNeXtBlock, torch.tanh),
        (InvertedResidual, lambda x: x),
        (SwinTransformerBlock, lambda x: x),
    ],
)
def test_dropped_block_is_its_shortcut(kind, shortcut, method):
    block, x = kind(), images()
    new = F.stochastic_depth(block, method=method, drop_rate=1.0)
    half = F.stochastic_depth(block, method=method, drop_rate=0.5).eval()

    assert_close(new(x), shortcut(x))
    assert_close(half(x), (block(x) + shortcut(x)) / 2)


def test_blocks_without_a_shortcut_are_not_dropped():
    model = nn.Sequential(InvertedResidual(False), InvertedResidual(), InvertedResidual(False))
    new = F.stochastic_depth(model, drop_rate=0.5)

    assert [type(block).__name__.startswith("Stochastic") for block in new] == [False, True, False]
    assert new[1].dropping.rate == 0.5  # the last of those that are dropped


@pytest.mark.parametrize(
    ("operate", "advice"),
    [
        (F.stochastic_depth, r"target=MyBlock.*target=ResidualBlock\(MyBlock"),
        (F.gated_linear_units, r"register_gated_linear_units\(MyBlock, linear=.*activation="),
        (
            partial(F.alibi, max_sequence_length=2),
            r"@.*register_alibi\(MyAttention\).*def convert\(",
        ),
    ],
)
def test_warning_shows_how_to_describe_a_block(operate, advice):
    with pytest.warns(F.NoEffectWarning, match=f"(?s){advice}"):
        operate(nn.Linear(2, 2))


@pytest.mark.parametrize("count", [6, 7, 2])
def test_ghost_norm_keeps_the_activation(count):
    norm, x = BatchNormAct2d(4), images(count)
    nn.init.normal_(norm.bias)
    new = F.ghost_batchnorm(copy.deepcopy(norm), ghost_batch_size=2)
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


@pytest.mark.parametrize("kind", [LayerNorm, LayerNorm2d, RmsNorm])
def test_norms_compute_in_low_precision(kind):
    norm, x = kind(4), images() if kind is LayerNorm2d else images().movedim(1, -1)
    nn.init.normal_(norm.weight)
    new = F.low_precision_layernorm(norm)

    assert isinstance(new, kind)
    assert torch.equal(new(x), norm(x))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = new(x)
    assert outputs.dtype == torch.bfloat16
    assert_close(outputs.float(), norm(x), atol=0.02, rtol=0.02)


def tokens():
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


GATE = partial(F.attention_output_gate, channels=3)  # a new gate multiplies by 1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [WindowAttention, ShiftedWindowAttention, EncoderBlock])
def test_attention_is_intercepted_and_stays_the_same(kind, training):
    block, x = kind().train(training), tokens()

    with torch.no_grad():  # where nn.MultiheadAttention would take its fast path
        assert_close(GATE(block)(x), block(x))
        assert not torch.allclose(F.exclusive_self_attention(block)(x), block(x), atol=0.01)
    assert_close(GATE(block)(x), block(x))
    model = GATE(block)
    model(x).sum().backward()
    assert model.attention_changes.attention_output_gate.gate.grad.any()


def test_scores_are_those_of_normalized_queries():
    def unit(x):
        return rms_norm(x, x.shape[-1:])

    class Unit(nn.Module):
        forward = staticmethod(unit)

    block, x, bias = WindowAttention(), tokens(), torch.randn(5, 5)
    by_hand = WindowAttention(Unit())
    by_hand.load_state_dict(block.state_dict())

    assert_close(F.qk_norm(block)(x, mask=bias), by_hand(x, mask=bias))
    with pytest.warns(F.NoEffectWarning, match=r"without a norm of queries of .*timm\.layers"):
        assert F.qk_norm(by_hand) is by_hand  # which normalizes already

    swin = ShiftedWindowAttention()
    by_hand.load_state_dict(swin.state_dict())
    assert_close(F.qk_norm(swin)(x), by_hand(x, mask=torch.arange(5.0)))

    of_torch = EncoderBlock()
    qkv = of_torch.self_attention
    by_hand.qkv.load_state_dict({"weight": qkv.in_proj_weight, "bias": qkv.in_proj_bias})
    between = x + qkv.out_proj(by_hand(x))
    assert_close(F.qk_norm(of_torch)(x), between + of_torch.mlp(between))


def test_multihead_attention_that_returns_weights_is_refused():
    block = EncoderBlock()
    block.need_weights = True

    with pytest.raises(ValueError, match=r"qk_norm needs .* need_weights=False\), without masks"):
        F.qk_norm(block)(tokens())


@pytest.mark.parametrize(
    "operate", [F.low_precision_layernorm, F.stochastic_depth, F.qk_norm, GATE]
)
def test_warning_names_the_classes_of_both_libraries(operate):
    with pytest.warns(F.NoEffectWarning, match=r"looked for .*\btimm\.") as record:
        operate(nn.Sequential(nn.Linear(2, 2)))
    assert "torchvision.models." in str(record[0].message)


def test_attention_drops_with_its_rate():
    block = ShiftedWindowAttention()
    block.attention_dropout = 1.0

    new = GATE(block)
    assert not new(tokens()).any()
    assert_close(new.eval()(tokens()), block.eval()(tokens()))


def test_scores_that_are_cosines_are_left():
    block = ShiftedWindowAttention()
    block.logit_scale = nn.Parameter(torch.ones(2, 1, 1))

    with pytest.warns(F.NoEffectWarning, match="found nothing"):
        assert F.qk_norm(block) is block
