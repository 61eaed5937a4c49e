"""Factorized layers compute with the best weight of their rank, and only where that is cheaper."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

from composable.functional import FactorizedLayer, NoEffectWarning, blurpool, factorize
from tests.support.tensors import randn

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
small = partial(factorize, min_channels=0, min_features=0)


def filled(layer, seed=0):
    """Fill a layer with random weights."""
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=seed + i))
    return layer


def stays(model, **options):
    with pytest.warns(NoEffectWarning, match="factorize found nothing to replace"):
        return small(model, **{"latent_channels": 1, "latent_features": 1, **options}) is model


# --- the fit ---


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_weight_of_low_rank_is_fitted_to_rounding(dtype, near):
    linear, x = filled(nn.Linear(16, 12, dtype=dtype)), randn(5, 16, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(randn(12, 3, dtype=dtype) @ randn(3, 16, seed=1, dtype=dtype))

    assert_close(small(linear, latent_features=3)(x), linear(x), rtol=near, atol=near)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "circular", "replicate"])
@pytest.mark.parametrize("groups", [1, 2])
def test_options_of_the_convolution_are_kept(dims, padding_mode, groups):
    options = {"stride": 2, "padding": 2, "dilation": 2, "groups": groups}
    conv = filled(CONVS[dims](4, 8, 3, padding_mode=padding_mode, **options)).double()
    x = randn(2, 4, *[9 - dims] * dims, dtype=torch.float64)

    new = small(conv, latent_channels=2 * groups)
    plain = copy.deepcopy(conv)
    plain.weight = nn.Parameter(new.weight)

    assert isinstance(new, FactorizedLayer)
    assert new.weight.shape == conv.weight.shape
    assert_close(new(x), plain(x))
    named = nn.Conv2d(4, 4, 3, padding="same")
    assert small(named, latent_channels=2)(randn(2, 4, 6, 6)).shape == (2, 4, 6, 6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("build", [nn.Linear, partial(nn.Conv2d, kernel_size=3)])
def test_bias_is_shared(build, bias):
    layer = build(8, 8, bias=bias)
    new = small(layer, latent_channels=2, latent_features=2)

    assert new.bias is layer.bias
    assert new.expand.bias is layer.bias
    assert new.reduce.bias is None


def test_factors_of_a_zero_weight_can_be_trained():
    linear = nn.Linear(8, 8)
    nn.init.zeros_(linear.weight)
    new, x = small(linear, latent_features=2), randn(4, 8)
    before = new(x)

    new(x).square().sum().backward()
    with torch.no_grad():
        new.expand.weight -= new.expand.weight.grad

    assert_close(before, linear(x))
    assert (new(x) - before).abs().max() > 0.1


def test_signs_of_singular_vectors_are_fixed():
    linear, turned = (filled(nn.Linear(8, 8, bias=False)) for _ in range(2))
    with torch.no_grad():
        turned.weight.neg_()  # the same vectors, one of each pair with the other sign
    pairs = [small(layer, latent_features=2) for layer in (linear, turned)]

    for pair in pairs:
        columns = pair.expand.weight
        largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
        assert (largest > 0).all()
    assert_close(pairs[0].expand.weight.abs(), pairs[1].expand.weight.abs())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_fitted_in_float32(dtype):
    half = filled(nn.Linear(16, 12)).to(dtype)
    exact = small(copy.deepcopy(half).float(), latent_features=3)

    new = small(half, latent_features=3)

    assert new.reduce.weight.dtype == new.expand.weight.dtype == dtype
    assert torch.equal(new.reduce.weight, exact.reduce.weight.to(dtype))
    assert torch.equal(new.expand.weight, exact.expand.weight.to(dtype))


# --- when ---


def test_linear_layer_is_replaced_if_that_saves_work():
    # a pair takes (inputs + outputs) * rank multiply-adds instead of inputs * outputs
    for layer, too_many in [(nn.Linear(12, 6), 4), (nn.Linear(6, 6), 3)]:
        assert stays(layer, latent_features=too_many)
        assert small(layer, latent_features=too_many - 1) is not layer


@pytest.mark.parametrize(
    ("latent", "size", "expected"),
    [(3, (16, 12), 3), (0.25, (16, 12), 3), (0.3, (16, 12), 3), (0.01, (16, 12), 1)],
)
def test_latent_size_is_a_number_or_a_share_of_the_smaller_size(latent, size, expected):
    for shape in (size, size[::-1]):
        linear = small(nn.Linear(*shape), latent_features=latent)
        conv = small(nn.Conv1d(*shape, 2), latent_channels=latent)
        assert linear.reduce.out_features == conv.reduce.out_channels == expected


@pytest.mark.parametrize("narrow", [(16, 15), (15, 16)])
def test_narrow_layers_are_not_replaced(narrow):
    wide = (16, 16)
    model = nn.ModuleList(
        [nn.Linear(*wide), nn.Linear(*narrow), nn.Conv1d(*wide, 3), nn.Conv1d(*narrow, 3)]
    )

    new = factorize(model, min_channels=16, min_features=16)

    new_kinds = [type(layer).__name__ for layer in new]
    assert new_kinds == ["FactorizedLayer", "Linear", "FactorizedLayer", "Conv1d"]
    assert type(factorize(new[1], min_features=1, latent_features=1)) is FactorizedLayer
    convs = factorize(model, factorize_linears=False, min_channels=16)
    linears = factorize(model, factorize_convs=False, min_features=16)
    assert [type(new[i]) for new in (convs, linears) for i in (0, 2)] == [
        *(nn.Linear, FactorizedLayer),
        *(FactorizedLayer, nn.Conv1d),
    ]


# --- what stays, and what is kept ---


class Named(nn.Linear):
    def describe(self):
        return "more than a weight"


def with_more(add):
    """Build a linear layer with a further attribute or hook."""
    linear = nn.Linear(8, 8)
    add(linear)
    return linear


@pytest.mark.parametrize(
    "build",
    [
        lambda: Named(8, 8),
        lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
        lambda: parametrize.register_parametrization(nn.Linear(8, 8), "bias", nn.Identity()),
        lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5),
        lambda: with_more(lambda layer: setattr(layer, "forward", torch.relu)),
        lambda: with_more(lambda layer: layer.register_parameter("scale", nn.Parameter(randn(8)))),
        lambda: with_more(lambda layer: layer.register_buffer("scale", randn(8))),
        lambda: with_more(lambda layer: layer.register_module("adapter", nn.Tanh())),
        lambda: nn.Linear(8, 8, dtype=torch.complex64),
        lambda: nn.ConvTranspose2d(8, 8, 3),
        lambda: nn.Bilinear(8, 8, 8),
        lambda: nn.MultiheadAttention(8, 2),
        lambda: blurpool(nn.Conv2d(8, 8, 3, stride=2), min_channels=0),
        lambda: nn.Linear(8, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_that_are_more_than_a_product_are_not_replaced(build):
    assert stays(nn.Sequential(build()))


def test_shared_weight_is_not_replaced():
    embedding, output = nn.Embedding(16, 8), nn.Linear(8, 16)
    output.weight = embedding.weight
    model = nn.ModuleList([embedding, nn.Linear(8, 8), output])

    new = small(model, latent_features=1)

    assert isinstance(new[1], FactorizedLayer)
    assert new[2].weight is new[0].weight is embedding.weight


@pytest.mark.parametrize("mode", [True, False])
def test_encoder_reads_the_product_of_the_factors(mode):
    options = {"dropout": 0.0, "batch_first": True}
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, **options).train(mode), randn(2, 5, 8)
    with pytest.warns(NoEffectWarning, match="TransformerEncoderLayer can read its weights"):
        new = small(layer, latent_features=2)
    plain = copy.deepcopy(layer)
    for name in ("linear1", "linear2"):
        getattr(plain, name).weight = nn.Parameter(getattr(new, name).weight.detach())

    with torch.no_grad():
        assert_close(new(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flag", [True, False])
def test_attributes_modes_and_requires_grad_are_kept(flag):
    conv = nn.Conv2d(8, 8, 3, stride=2).train(flag)
    conv.weight.requires_grad_(flag)
    conv.tag = "third"

    new = small(conv, latent_channels=2)

    assert (new.tag, new.stride, new.in_channels) == ("third", (2, 2), 8)
    assert [module.training for module in new.modules()] == [flag] * 3
    assert new.reduce.weight.requires_grad is new.expand.weight.requires_grad is flag


def test_layers_of_a_pair_are_not_factorized_again():
    once = small(nn.Sequential(nn.Linear(16, 16), nn.Conv2d(16, 16, 3)), latent_features=6)

    assert small(once, latent_features=6) is once


# --- invalid arguments ---


@pytest.mark.parametrize(
    ("value", "device", "message"),
    [
        (float("nan"), "cpu", "must be finite"),
        (float("inf"), "cpu", "must be finite"),
        (0.0, "meta", "must have values.* meta device"),
    ],
)
def test_rejects_weight_that_is_not_finite_or_has_no_values(value, device, message):
    linear = nn.Linear(8, 8)
    with torch.no_grad():
        linear.weight[0, 0] = value

    with pytest.raises(ValueError, match=f"^0.weight {message}"):
        small(nn.Sequential(linear.to(device)), latent_features=1)
