"""Norms in low precision, under autocast and without it."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import group_norm, layer_norm
from torch.testing import assert_close

import composable.functional as F
from composable.algorithms import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from composable.testing import NoSync
from tests.support.models import CLASSES
from tests.support.runs import make_trainer
from tests.support.tensors import randn, seeded

LOW = [torch.float16, torch.bfloat16]


def drawn(norm):
    if norm.weight is not None:
        nn.init.uniform_(norm.weight, 0.5, 2, generator=seeded(1))
    return norm


def layers(**options):
    return drawn(nn.LayerNorm(6, **options))


def groups(**options):
    return drawn(nn.GroupNorm(2, 4, **options))


def lowered(x, norm, dtype):
    weight, bias = (None if p is None else p.to(dtype) for p in (norm.weight, norm.bias))
    if isinstance(norm, nn.LayerNorm):
        return layer_norm(x.to(dtype), norm.normalized_shape, weight, bias, norm.eps)
    return group_norm(x.to(dtype), norm.num_groups, weight, bias, norm.eps)


BOTH = pytest.mark.parametrize(
    ("operate", "build"), [(F.low_precision_layernorm, layers), (F.low_precision_groupnorm, groups)]
)


@BOTH
@pytest.mark.parametrize("dtype", LOW)
def test_uses_the_dtype_of_autocast(operate, build, dtype):
    norm, x = build(), randn(3, 4, 6)
    new = operate(norm)

    with torch.autocast("cpu", dtype):
        outputs = new(x)

    assert outputs.dtype == dtype
    assert torch.equal(outputs, lowered(x, norm, dtype))
    assert {p.dtype for p in new.parameters()} == {torch.float32}


@BOTH
@pytest.mark.parametrize("dtype", LOW)
def test_precision_is_used_without_autocast_and_overrides_it(operate, build, dtype):
    norm, x = build(), randn(3, 4, 6)
    new = operate(norm, precision=dtype)

    outputs = new(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert new(x).dtype == dtype

    assert outputs.dtype == x.dtype
    assert torch.equal(outputs, lowered(x, norm, dtype).float())
    norm, x = build().double(), x.double()  # float64 is preserved
    for precision in (None, dtype):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(operate(norm, precision=precision)(x), norm(x))


@pytest.mark.parametrize(
    ("operate", "build", "option"),
    [
        (F.low_precision_layernorm, layers, "elementwise_affine"),
        (F.low_precision_layernorm, layers, "bias"),
        (F.low_precision_groupnorm, groups, "affine"),
    ],
)
def test_works_without_affine_parameters(operate, build, option):
    norm, x = build(**{option: False}), randn(3, 4, 6)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(operate(norm)(x), lowered(x, norm, torch.bfloat16))


def test_other_normalizations_are_not_replaced():
    new = F.low_precision_layernorm(nn.Sequential(nn.LayerNorm(6), nn.GroupNorm(2, 6)))

    assert [type(layer) for layer in new] == [F.LowPrecisionLayerNormLayer, nn.GroupNorm]


@BOTH
def test_vmap_under_autocast_matches_loop_and_does_not_wait(operate, build):
    new, x = operate(build()), randn(3, 2, 4, 6)

    with torch.autocast("cpu", torch.bfloat16), NoSync():
        outputs = torch.func.vmap(new)(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(outputs, torch.stack([new(each) for each in x]))


@pytest.mark.compile
def test_compiles_into_one_graph_under_autocast():
    model, x = F.low_precision_layernorm(layers()), randn(3, 4, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")

    with torch.autocast("cpu", torch.bfloat16):
        assert_close(compiled(x), model(x))
    assert_close(compiled(x), model(x))


# --- norms that have no effect in training ---

NORMS = pytest.mark.parametrize(
    ("algorithm", "norm"),
    [
        (LowPrecisionLayerNorm, partial(nn.LayerNorm, 4)),
        (LowPrecisionGroupNorm, partial(nn.GroupNorm, 2, 4)),
    ],
)


class InAutocast(nn.Sequential):
    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(inputs).float()


@NORMS
def test_warns_once_without_autocast(algorithm, norm):
    shared = norm()
    model = nn.Sequential(shared, nn.Linear(4, 4), shared, nn.Linear(4, CLASSES))
    with pytest.warns(F.NoEffectWarning, match="there is no autocast.*precision=") as caught:
        make_trainer(model, algorithms=[algorithm()]).fit()

    assert len(caught) == 1


@NORMS
def test_does_not_warn_if_it_has_an_effect(algorithm, norm):
    make_trainer(InAutocast(norm(), nn.Linear(4, CLASSES)), algorithms=[algorithm()]).fit()
    plain = nn.Sequential(norm(), nn.Linear(4, CLASSES))
    make_trainer(plain, algorithms=[algorithm(torch.bfloat16)]).fit()
    F.low_precision_layernorm(nn.LayerNorm(4))(torch.rand(2, 4))  # a function does not warn
