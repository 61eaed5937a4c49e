"""The laws of norms in low precision: autocast's dtype in, through and out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import group_norm, layer_norm
from torch.testing import assert_close

from composable.functional import (
    LowPrecisionGroupNorm,
    LowPrecisionLayerNorm,
    low_precision_groupnorm,
    low_precision_layernorm,
)
from composable.testing import NoSync

LOW = [torch.float16, torch.bfloat16]


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def layers(**options):
    norm = nn.LayerNorm(6, **options)
    if norm.elementwise_affine:
        nn.init.uniform_(norm.weight, 0.5, 2, generator=torch.Generator().manual_seed(1))
    return norm


def groups(**options):
    norm = nn.GroupNorm(2, 4, **options)
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 2, generator=torch.Generator().manual_seed(1))
    return norm


def lowered(x, norm, dtype):
    weight, bias = (None if p is None else p.to(dtype) for p in (norm.weight, norm.bias))
    if isinstance(norm, nn.LayerNorm):
        return layer_norm(x.to(dtype), norm.normalized_shape, weight, bias, norm.eps)
    return group_norm(x.to(dtype), norm.num_groups, weight, bias, norm.eps)


BOTH = pytest.mark.parametrize(
    ("operate", "build"), [(low_precision_layernorm, layers), (low_precision_groupnorm, groups)]
)


@BOTH
@pytest.mark.parametrize("dtype", LOW)
def test_under_autocast_the_norm_is_computed_in_its_dtype(operate, build, dtype):
    norm, x = build(), randn(3, 4, 6)
    new = operate(norm)

    with torch.autocast("cpu", dtype):
        outputs = new(x)

    assert outputs.dtype == dtype
    assert torch.equal(outputs, lowered(x, norm, dtype))
    assert {p.dtype for p in new.parameters()} == {torch.float32}


@BOTH
def test_without_autocast_the_layers_compute_what_they_did(operate, build):
    norm, x = build(), randn(3, 4, 6)

    assert torch.equal(operate(norm)(x), norm(x))


@BOTH
@pytest.mark.parametrize("dtype", LOW)
def test_a_precision_holds_without_autocast_and_gives_back_the_dtype(operate, build, dtype):
    norm, x = build(), randn(3, 4, 6)

    outputs = operate(norm, precision=dtype)(x)

    assert outputs.dtype == x.dtype
    assert torch.equal(outputs, lowered(x, norm, dtype).float())


@BOTH
def test_a_precision_wins_over_that_of_autocast(operate, build):
    new = operate(build(), precision=torch.float16)

    with torch.autocast("cpu", torch.bfloat16):
        assert new(randn(3, 4, 6)).dtype == torch.float16


@BOTH
def test_doubles_stay_doubles(operate, build):
    norm, x = build().double(), randn(3, 4, 6, dtype=torch.float64)

    for precision in (None, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(operate(norm, precision=precision)(x), norm(x))


@pytest.mark.parametrize(
    ("operate", "build", "option"),
    [
        (low_precision_layernorm, layers, "elementwise_affine"),
        (low_precision_layernorm, layers, "bias"),
        (low_precision_groupnorm, groups, "affine"),
    ],
)
def test_an_affine_map_is_not_needed(operate, build, option):
    norm, x = build(**{option: False}), randn(3, 4, 6)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(operate(norm)(x), lowered(x, norm, torch.bfloat16))


@BOTH
def test_gradients_reach_the_parameters_in_their_own_dtype(operate, build):
    new, x = operate(build()), randn(3, 4, 6).requires_grad_()

    with torch.autocast("cpu", torch.bfloat16):
        new(x).square().sum().backward()

    assert {t.grad.dtype for t in (x, new.weight, new.bias)} == {torch.float32}


def test_a_subclass_with_a_forward_of_its_own_stays():
    class Exact(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.double()).to(x.dtype)

    class Named(nn.LayerNorm):
        pass

    new = low_precision_layernorm(nn.Sequential(Exact(6), Named(6), nn.RMSNorm(6)))

    assert [type(layer).__name__ for layer in new] == ["Exact", "LowPrecisionNamed", "RMSNorm"]


def test_layers_built_by_hand_are_those_of_the_surgery():
    x = randn(3, 4, 6)
    for by_hand, norm, operate in [
        (LowPrecisionLayerNorm(6, precision=torch.bfloat16), layers, low_precision_layernorm),
        (LowPrecisionGroupNorm(2, 4, precision=torch.bfloat16), groups, low_precision_groupnorm),
    ]:
        new = operate(norm(), precision=torch.bfloat16)
        by_hand.load_state_dict(new.state_dict())
        assert torch.equal(by_hand(x), new(x))
        assert "precision=torch.bfloat16" in repr(new)


@BOTH
def test_ensembles_and_the_device(operate, build):
    new, x = operate(build()), randn(3, 2, 4, 6)

    with torch.autocast("cpu", torch.bfloat16), NoSync():
        outputs = torch.func.vmap(new)(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(outputs, torch.stack([new(each) for each in x]))


@pytest.mark.compile
def test_compiles_into_one_graph():
    model, x = nn.Sequential(low_precision_layernorm(layers()), nn.Linear(6, 2)), randn(3, 4, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")

    with torch.autocast("cpu", torch.bfloat16):
        assert_close(compiled(x), model(x))
    assert_close(compiled(x), model(x))


@BOTH
@pytest.mark.parametrize(
    ("precision", "error"), [("amp", TypeError), (16, TypeError), (torch.float32, ValueError)]
)
@pytest.mark.usefixtures("unchecked")
def test_a_precision_is_a_dtype_of_16_bits(operate, build, precision, error):
    with pytest.raises(error, match=r"precision=.* must be torch.float16, torch.bfloat16"):
        operate(build(), precision=precision)
