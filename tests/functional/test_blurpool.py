"""Anti-aliased subsampling."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close

import composable.functional as F
from tests.support.folded import folded
from tests.support.tensors import randn


def net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, stride=2, bias=False),
    )


# The blur


def test_filter_is_binomial_in_each_dimension():
    dot = torch.zeros(1, 1, 5, 5)
    dot[..., 2, 2] = 16

    taps = torch.tensor([0.0, 1, 2, 1, 0])
    assert_close(F.blur(dot)[0, 0], torch.outer(taps, taps))
    assert F.blur(torch.ones(1, 1, 4), padding_mode="zeros").tolist() == [[[0.75, 1, 1, 0.75]]]


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_blur_preserves_constants_and_subsamples(mode, dims, stride):
    constant, x = torch.full((1, 2, *[5] * dims), 3.0), randn(2, 3, *[7] * dims)

    smooth = F.blur(constant, stride=stride, padding_mode=mode)

    assert_close(smooth, torch.full((1, 2, *[(5 - 1) // stride + 1] * dims), 3.0))
    strides = (..., *[slice(None, None, stride)] * dims)
    assert_close(F.blur(x, stride=stride), F.blur(x)[strides])
    assert_close(F.blur(x)[:, 1:2], F.blur(x[:, 1:2]))  # channels don't mix
    single = x[(..., *[slice(1, 2)] * dims)]
    assert_close(F.blur(single, stride=stride), single)


# What replaces what


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_layers_match_the_formula(dims, mode):
    options = {"padding": 2, "dilation": 2, "groups": 4, "padding_mode": mode, "bias": False}
    conv = getattr(nn, f"Conv{dims}d")(16, 8, 3, stride=2, **options)
    kind = getattr(nn, f"MaxPool{dims}d")
    dense = copy.deepcopy(conv)
    dense.stride = (1,) * dims
    x = randn(2, 16, *[7] * dims)

    layers = [F.blurpool(conv), F.blurpool(conv, blur_first=False), F.blurpool(kind(3, 2, 1))]

    pad = {"padding_mode": "circular" if mode == "circular" else "replicate"}
    expected = [conv(F.blur(x, **pad)), F.blur(dense(x), stride=2, **pad)]
    expected.append(F.blur(kind(3, 1, 1)(x), stride=2))
    assert_close([layer(x) for layer in layers], expected)
    assert_close([layer(x[0]) for layer in layers], [one[0] for one in expected])
    names = [f"BlurConv{dims}d", f"BlurConv{dims}d", f"BlurMaxPool{dims}d"]
    assert [type(layer).__name__ for layer in layers] == names


def test_only_strided_dimensions_are_blurred():
    conv = nn.Conv2d(16, 4, 1, stride=(1, 2))
    x = randn(1, 16, 5, 6)

    rows = F.blur(x.transpose(1, 2).reshape(5, 16, 6)).reshape(1, 5, 16, 6).transpose(1, 2)
    assert_close(F.blurpool(conv)(x), conv(rows))


@folded("size", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("options", [(1, 0, 1), (2, 0, 1), (2, 1, 1), (3, 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_output_shape_is_that_of_the_original_layer(size, stride, options, ceil_mode):
    kernel, padding, dilation = options
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return  # smaller than the window, in the old layer as in the new
    x = randn(1, 16, size, size + 1)
    pool = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    conv = nn.Conv2d(16, 2, kernel, stride, padding, dilation)

    assert F.blurpool(pool)(x).shape == pool(x).shape
    for blur_first in (True, False):
        assert F.blurpool(conv, blur_first=blur_first)(x).shape == conv(x).shape


# The model around


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["Conv2d", "BatchNorm2d", "BlurMaxPool2d", "BlurConv2d"]),
        ({"min_channels": 3}, ["BlurConv2d", "BatchNorm2d", "BlurMaxPool2d", "BlurConv2d"]),
        ({"replace_maxpools": False}, ["Conv2d", "BatchNorm2d", "MaxPool2d", "BlurConv2d"]),
        ({"replace_convs": False}, ["Conv2d", "BatchNorm2d", "BlurMaxPool2d", "Conv2d"]),
    ],
)
def test_options_select_what_is_replaced(options, expected):
    assert [type(layer).__name__ for layer in F.blurpool(net(), **options)] == expected


def test_parametrization_is_kept():
    conv, x = parametrizations.weight_norm(nn.Conv2d(16, 4, 3, stride=2)), randn(1, 16, 7, 7)

    new = F.blurpool(conv)

    assert list(new.state_dict()) == list(conv.state_dict())
    assert_close(new(x), conv(F.blur(x)))
    plain = parametrize.remove_parametrizations(new, "weight")
    assert type(plain) is F.BlurConv2d
    assert_close(plain(x), conv(F.blur(x)))


# What is skipped


def test_layers_with_few_channels_or_without_a_stride_are_not_replaced():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.MaxPool2d(3, stride=1))
    with pytest.warns(
        F.NoEffectWarning, match=r"found nothing .* at least 16 input channels or Max"
    ):
        assert F.blurpool(model) is model


def test_max_pool_with_indices_is_not_replaced_with_a_warning():
    model = nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(2))
    with pytest.warns(F.NoEffectWarning, match="blurpool skipped 0: it returns indices"):
        new = F.blurpool(model)
    assert type(new[0]) is nn.MaxPool2d
    with pytest.raises(ValueError, match="return_indices=True"):
        F.BlurMaxPool2d(2, return_indices=True)
