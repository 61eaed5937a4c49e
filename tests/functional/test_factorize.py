"""Factorized layers compute with the best weight of their rank, and only where that is cheaper."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

from composable.algorithms import Factorize
from composable.functional import FactorizedLayer, NoEffectWarning, blurpool, factorize
from composable.optim.building import update_param_groups
from tests.support.models import seeded
from tests.support.runs import make_trainer
from tests.support.tensors import randn
from tests.support.tensors import seeded as generator

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


def test_factors_are_trained_with_the_options_of_their_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    groups = [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[1].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    new = small(model, latent_features=2)

    update_param_groups([optimizer], model, new)

    held = [set(group["params"]) for group in optimizer.param_groups]
    assert held == [set(pair.parameters()) for pair in new]


def test_defaults_of_the_algorithm_are_those_of_the_function():
    wide = nn.Sequential(nn.Linear(512, 512), nn.Conv1d(512, 512, 3), nn.Linear(511, 512))
    trainer = make_trainer(wide, algorithms=[Factorize(init="random")])

    assert repr(trainer.state.model) == repr(factorize(wide, init="random"))


# --- a pair that is factorized further ---

LAYERS = {
    "linear": lambda: nn.Linear(24, 32),
    "linear without a bias": lambda: nn.Linear(24, 32, bias=False),
    "conv": lambda: nn.Conv2d(24, 32, 3, 2, 1, padding_mode="circular"),
    "groups": lambda: nn.Conv1d(24, 32, 3, groups=4),
    "channels last": lambda: nn.Conv2d(24, 32, 3).to(memory_format=torch.channels_last),
}


def lower(model, units):
    return small(model, latent_features=units, latent_channels=units)


@pytest.mark.parametrize("name", LAYERS)
def test_lower_rank_equals_that_of_the_whole_layer(name):
    layer = seeded(LAYERS[name]).double().eval()
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


@pytest.mark.parametrize("units", [6, 8])
def test_same_or_higher_rank_changes_nothing(units):
    once = lower(nn.Sequential(nn.Linear(16, 16), nn.Conv2d(16, 16, 3)), 6)

    assert lower(once, units) is once


def test_frozen_pair_stays_frozen():
    pair = lower(nn.Linear(24, 32).requires_grad_(False), 12)

    assert not any(p.requires_grad for p in lower(pair, 8).parameters())


# --- weights that are fitted approximately, or drawn ---

DRAWN = [
    lambda: nn.Linear(96, 64),
    lambda: nn.Conv2d(64, 96, 3, padding=1),
    lambda: nn.Conv1d(64, 128, 3, groups=2, dtype=torch.float64),
]


def decaying(layer):
    """Give the weight singular values that decay, as those of trained layers do."""
    with torch.no_grad():
        matrix = layer.weight.flatten(1)
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        s = 1 / (1 + torch.arange(len(s), dtype=s.dtype))
        layer.weight.copy_((u * s @ vh).reshape(layer.weight.shape))
    return layer


@pytest.mark.parametrize("build", DRAWN)
def test_randomized_fit_is_nearly_the_best(build, still_generators):
    layer = decaying(seeded(build))

    best, near, again = (small(layer, init=i) for i in ("svd", *2 * ["randomized"]))

    error, least = (torch.linalg.vector_norm(n.weight - layer.weight) for n in (near, best))
    assert least <= error * (1 + 1e-5)
    assert error < 1.02 * least
    assert torch.equal(near.weight, again.weight)
    assert near.reduce.weight.shape == best.reduce.weight.shape


@pytest.mark.parametrize("build", DRAWN)
def test_random_weights_are_drawn_as_new_layers_draw_them(build):
    layer = seeded(build)

    new = small(layer, init="random", generator=generator(3))

    for part in (new.reduce, new.expand):
        bound = part.weight[0].numel() ** -0.5
        assert 0.8 * bound < part.weight.abs().max() <= bound
        assert part.weight.dtype == layer.weight.dtype
    assert new.bias is layer.bias


def test_random_weights_need_no_values_to_fit():
    layer = nn.Linear(64, 64, device="meta")

    assert small(layer, init="random").reduce.weight.is_meta


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
