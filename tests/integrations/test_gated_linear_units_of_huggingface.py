"""Gated linear units in Hugging Face's models."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

import composable.functional as F
from tests.support import hugging_face
from tests.support.hugging_face import WIDTH, build, layers
from tests.support.tensors import seeded


def gate(model, **options):
    return F.gated_linear_units(model, **{"generator": generator(), **options})


def generator():
    return seeded()


def parts(layer):
    """Return the first linear layer of a block, its activation, and the rest of the block."""
    if hasattr(layer, "mlp"):
        return layer.mlp.c_fc, layer.mlp.act, lambda hidden, x: layer.mlp.c_proj(hidden)
    first = layer.intermediate
    return first.dense, first.intermediate_act_fn, layer.output


def block(layer):
    """Return the whole block as a function."""
    if hasattr(layer, "mlp"):
        return layer.mlp
    return lambda x: layer.output(layer.intermediate(x), x)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_matches_the_formula(family, bias, other):
    model = build(family)
    for layer in layers(model):
        nn.init.normal_(parts(layer)[0].bias, generator=generator())

    new = gate(model, gated_layer_bias=bias, non_gated_layer_bias=other)

    x = torch.randn(3, 5, WIDTH, generator=generator())
    for old, now in zip(layers(model), layers(new), strict=True):
        first, act, rest = parts(old)
        weight = first.weight.T if family == "gpt2" else first.weight
        second = parts(now)[0].non_gated
        opened = act(linear(x, weight, first.bias if bias else None))
        expected = rest(opened * linear(x, second.weight, second.bias), x)
        assert_close(block(now)(x), expected)
        assert "non_gated" in repr(now)


def test_goes_together_with_alibi():
    model, ids = build("gpt2"), hugging_face.tokens(10)
    one = F.alibi(gate(model), max_sequence_length=40)
    other = gate(F.alibi(model, max_sequence_length=40))

    assert torch.equal(one(ids).logits, other(ids).logits)
