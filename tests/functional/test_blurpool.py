"""The laws of anti-aliased subsampling."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close

from composable.functional import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    NoEffectWarning,
    blur,
    blurpool,
)

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
BLURRED = {
    nn.Conv1d: BlurConv1d,
    nn.Conv2d: BlurConv2d,
    nn.Conv3d: BlurConv3d,
    nn.MaxPool1d: BlurMaxPool1d,
    nn.MaxPool2d: BlurMaxPool2d,
    nn.MaxPool3d: BlurMaxPool3d,
}


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, stride=2, bias=False),
    )


NET = net()


# The blur


def test_the_filter_is_binomial_along_every_dimension():
    dot = torch.zeros(1, 1, 5, 5)
    dot[..., 2, 2] = 16

    taps = torch.tensor([0.0, 1, 2, 1, 0])
    assert_close(blur(dot)[0, 0], torch.outer(taps, taps))


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_constants_stay_constant_up_to_the_border(mode, dims, stride):
    constant = torch.full((1, 2, *[5] * dims), 3.0)

    smooth = blur(constant, stride=stride, padding_mode=mode)

    assert smooth.shape[2:] == torch.Size([(5 - 1) // stride + 1] * dims)
    assert_close(smooth, torch.full_like(smooth, 3.0))


@pytest.mark.parametrize("mode", ["replicate", "circular"])
def test_sums_stay_sums(mode):
    x = randn(1, 2, 5, 4)

    assert_close(blur(x, padding_mode=mode).sum((2, 3)), x.sum((2, 3)))


def test_zeros_darken_the_border():
    assert blur(torch.ones(1, 1, 4), padding_mode="zeros")[0, 0].tolist() == [0.75, 1, 1, 0.75]


def test_blurring_with_a_stride_is_blurring_and_then_subsampling():
    x = randn(2, 3, 7, 8)

    assert_close(blur(x, stride=(2, 3)), blur(x)[..., ::2, ::3])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_single_value_stays(dims):
    x = randn(2, 3, *[1] * dims)

    assert_close(blur(x, stride=2), x)


def test_channels_do_not_mix():
    x = randn(1, 3, 6)

    assert_close(blur(x)[:, 1:2], blur(x[:, 1:2]))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 4, 4, 4)])
def test_the_blur_has_one_to_three_dimensions(shape):
    with pytest.raises(
        ValueError, match=r"must have shape \[batch, channels, ...\] with 1 to 3 spatial"
    ):
        blur(torch.zeros(shape))


def test_the_blur_takes_floats():
    with pytest.raises(
        TypeError, match=r"inputs must have a floating-point dtype, not torch.uint8"
    ):
        blur(torch.zeros(1, 1, 3, dtype=torch.uint8))


def test_the_blur_has_positive_strides_and_known_borders():
    with pytest.raises(ValueError, match="stride=0 must be at least 1"):
        blur(torch.zeros(1, 1, 3), stride=0)
    with pytest.raises(ValueError, match=r"padding_mode='mirror' must be one of \['replicate'"):
        blur(torch.zeros(1, 1, 3), padding_mode="mirror")


# What replaces what


@pytest.mark.parametrize("blur_first", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_are_blurred_as_in_the_formula(dims, blur_first):
    conv = CONVS[dims](16, 8, 3, stride=2, padding=1)
    x = randn(2, 16, *[7] * dims)

    new = blurpool(conv, blur_first=blur_first)

    assert type(new) is BLURRED[CONVS[dims]]
    if blur_first:
        assert_close(new(x), conv(blur(x)))
    else:
        dense = copy.deepcopy(conv)
        dense.stride = (1,) * dims
        assert_close(new(x), blur(dense(x), stride=2))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_pools_are_blurred_as_in_the_formula(dims):
    x = randn(2, 3, *[7] * dims)

    new = blurpool(POOLS[dims](3, 2, 1))

    assert type(new) is BLURRED[POOLS[dims]]
    assert_close(new(x), blur(POOLS[dims](3, 1, 1)(x), stride=2))


def test_only_dimensions_with_a_stride_are_blurred():
    conv = nn.Conv2d(16, 4, 1, stride=(1, 2))
    x = randn(1, 16, 5, 6)

    rows = blur(x.transpose(1, 2).reshape(5, 16, 6)).reshape(1, 5, 16, 6).transpose(1, 2)
    assert_close(blurpool(conv)(x), conv(rows))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("options", [(1, 0, 1), (2, 0, 1), (2, 1, 1), (3, 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_shapes_are_those_of_the_old_layers(size, stride, options, ceil_mode):
    kernel, padding, dilation = options
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return  # smaller than the window, in the old layer as in the new
    x = randn(1, 16, size, size + 1)
    pool = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    conv = nn.Conv2d(16, 2, kernel, stride, padding, dilation)

    assert blurpool(pool)(x).shape == pool(x).shape
    for blur_first in (True, False):
        assert blurpool(conv, blur_first=blur_first)(x).shape == conv(x).shape


@pytest.mark.parametrize("layer", [nn.Conv2d(16, 4, 3, stride=2), nn.MaxPool2d(2)])
def test_an_example_without_a_batch_is_taken(layer):
    x = randn(16, 6, 6)

    assert_close(blurpool(layer)(x), blurpool(layer)(x[None])[0])


@pytest.mark.parametrize("blur_first", [True, False])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_options_of_the_convolution_stay(mode, blur_first):
    conv = nn.Conv2d(
        16, 8, 3, 2, padding=2, dilation=2, groups=4, bias=False, padding_mode=mode
    ).double()

    new = blurpool(conv.eval(), blur_first=blur_first)

    for name in ("padding", "dilation", "groups", "bias", "padding_mode", "kernel_size"):
        assert getattr(new, name) == getattr(conv, name)
    assert new.weight is conv.weight
    assert not new.training
    assert new(randn(1, 16, 8, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("blur_first", [True, False])
def test_a_circular_network_moves_with_its_input(blur_first):
    conv = nn.Conv2d(16, 4, 3, stride=2, padding=1, padding_mode="circular")
    x, new = randn(1, 16, 8, 8), blurpool(conv, blur_first=blur_first)

    assert_close(new(x.roll((2, 4), (2, 3))), new(x).roll((1, 2), (2, 3)))


@pytest.mark.parametrize("blur_first", [True, False])
def test_a_bright_image_stays_bright_at_the_border(blur_first):
    conv = nn.Conv2d(16, 4, 1, stride=2)
    bright = torch.ones(1, 16, 6, 6)

    assert_close(blurpool(conv, blur_first=blur_first)(bright), conv(bright))
    assert_close(blurpool(nn.MaxPool2d(2))(bright), torch.ones(1, 16, 3, 3))


def test_a_shift_by_one_changes_less():
    wave = torch.tensor([0.0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1])[None, None]
    pool = nn.MaxPool1d(2)

    def change(model):
        return (model(wave) - model(wave.roll(1, -1))).abs().sum()

    assert change(blurpool(pool)) < 0.6 * change(pool)


# The model around


def test_only_what_was_asked_for_is_replaced():
    def kinds(**options):
        return [type(layer).__name__ for layer in blurpool(net(), **options)]

    assert kinds() == ["Conv2d", "BatchNorm2d", "BlurMaxPool2d", "BlurConv2d"]
    assert kinds(min_channels=3)[0] == "BlurConv2d"
    assert kinds(replace_maxpools=False)[2:] == ["MaxPool2d", "BlurConv2d"]
    assert kinds(replace_convs=False)[2:] == ["BlurMaxPool2d", "Conv2d"]


def test_the_original_computes_what_it_did_and_shares_its_weights():
    model = net().eval()
    before, text = model(randn(1, 3, 32, 32)), repr(model)

    new = blurpool(model)

    assert not torch.allclose(new(randn(1, 3, 32, 32)), before)
    assert torch.equal(model(randn(1, 3, 32, 32)), before)
    assert repr(model) == text
    pairs = zip(new.parameters(), model.parameters(), strict=True)
    assert all(a is b for a, b in pairs)


def test_the_keys_of_the_state_dict_stay():
    model = net()
    new = blurpool(model)

    assert list(new.state_dict()) == list(model.state_dict())
    new.load_state_dict(model.state_dict())


def test_twice_is_once():
    once = blurpool(net())

    assert blurpool(once) is once


def test_hooks_and_modes_stay():
    model, calls = net(), []
    model[3].register_forward_hook(lambda *_: calls.append("conv"))
    model[2].eval()

    new = blurpool(model)
    new(randn(2, 3, 32, 32))

    assert calls == ["conv"]
    assert new.training
    assert not new[2].training


def test_a_shared_layer_stays_shared():
    pool = nn.MaxPool2d(2)
    new = blurpool(nn.Sequential(pool, nn.ReLU(), pool))

    assert new[0] is new[2]


def test_a_subclass_of_a_convolution_keeps_what_it_does():
    class Scaled(nn.Conv2d):
        def forward(self, x):
            return 10 * super().forward(x)

    conv, x = Scaled(16, 4, 3, stride=2), randn(1, 16, 7, 7)

    new = blurpool(conv)

    assert isinstance(new, Scaled)
    assert isinstance(new, BlurConv2d)
    assert_close(new(x), conv(blur(x)))


def test_a_parametrized_convolution_stays_parametrized():
    conv, x = parametrizations.weight_norm(nn.Conv2d(16, 4, 3, stride=2)), randn(1, 16, 7, 7)

    new = blurpool(conv)

    assert list(new.state_dict()) == list(conv.state_dict())
    assert_close(new(x), conv(blur(x)))
    plain = parametrize.remove_parametrizations(new, "weight")
    assert type(plain) is BlurConv2d
    assert_close(plain(x), conv(blur(x)))


def test_the_new_model_can_be_copied_saved_and_built_by_hand():
    layer, x = blurpool(nn.Conv2d(16, 4, 3, stride=2)), randn(1, 16, 7, 7)

    by_hand = BlurConv2d(16, 4, 3, stride=2)
    by_hand.load_state_dict(layer.state_dict())

    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.equal(by_hand(x), layer(x))
    assert "blur_first=True, blur_stride=(2, 2)" in repr(layer)


def test_a_blurred_model_can_change_its_dtype():
    new = blurpool(net()).double()

    assert new(randn(2, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64


def test_no_global_generator_moves(still_generators):
    blurpool(copy.deepcopy(NET))


# What is refused or reported


def test_a_model_without_anything_to_replace_is_reported():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.MaxPool2d(3, stride=1))
    with pytest.warns(NoEffectWarning, match=r"found nothing .* at least 16 input channels or Max"):
        assert blurpool(model) is model


def test_a_pool_with_indices_stays_and_is_reported():
    model = nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(2))
    with pytest.warns(NoEffectWarning, match="blurpool skipped 0: it returns indices"):
        new = blurpool(model)
    assert type(new[0]) is nn.MaxPool2d
    with pytest.raises(ValueError, match="return_indices=True"):
        BlurMaxPool2d(2, return_indices=True)


def test_a_lazy_convolution_is_refused():
    model = nn.Sequential(nn.LazyConv2d(16, 3, stride=2))
    with pytest.raises(ValueError, match=r"0 is lazy .* call the model once on a batch"):
        blurpool(model)


def test_something_must_be_replaced():
    with pytest.raises(
        ValueError, match="replace_convs=False and replace_maxpools=False leave nothing"
    ):
        blurpool(net(), replace_convs=False, replace_maxpools=False)


def test_min_channels_is_not_negative():
    with pytest.raises(ValueError, match="min_channels=-1 must be at least 0"):
        blurpool(net(), min_channels=-1)
