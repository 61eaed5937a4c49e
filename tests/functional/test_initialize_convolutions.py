"""Dirac initialization: its values, and which layers it changes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import NoEffectWarning, initialize_convolutions, whiten_first_layer


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("outputs", [4, 8, 12])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_weights_are_those_of_torch_in_the_first_filters_of_each_group(kind, outputs, groups):
    conv = kind(4, outputs, 3, groups=groups)
    new = initialize_convolutions(nn.Sequential(conv))[0]
    inputs = 4 // groups
    expected = conv.weight.detach().clone()
    for group in expected.chunk(groups):
        nn.init.dirac_(group[:inputs])

    assert_close(new.weight.detach(), expected)
    assert new.bias is conv.bias


def test_layout_and_dtype_of_a_weight_stay():
    conv = nn.Conv2d(3, 8, 3).bfloat16().to(memory_format=torch.channels_last)
    new = initialize_convolutions(conv)

    assert new.weight.is_contiguous(memory_format=torch.channels_last)
    assert new.weight.dtype is torch.bfloat16
    assert torch.equal(new.weight[3:], conv.weight[3:])


def test_pixelwise_even_frozen_and_transposed_kernels_stay():
    frozen = nn.Conv2d(3, 3, 3)
    frozen.weight.requires_grad_(False)
    model = nn.Sequential(
        *(nn.Conv2d(3, 3, 2), nn.Conv2d(3, 3, 1), frozen, nn.ConvTranspose2d(3, 3, 3)),
        nn.Conv2d(3, 3, (1, 3)),
    )
    new = initialize_convolutions(model)

    same = [a is b for a, b in zip(model.parameters(), new.parameters(), strict=True)]
    assert same == [True] * 8 + [False, True]


def test_a_model_whose_convolutions_are_frozen_is_returned_with_a_warning():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 1)).requires_grad_(False)

    with pytest.warns(NoEffectWarning, match="odd kernels that are trained"):
        assert initialize_convolutions(model) is model


def test_a_depthwise_shared_and_tied_kernel_and_one_of_fewer_outputs_copy_too():
    depthwise, narrow = nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 4, 3)
    tied = nn.Conv2d(8, 4, 3)
    tied.weight = narrow.weight
    model = nn.Sequential(depthwise, narrow, tied, narrow)
    new = initialize_convolutions(model)

    expected = [depthwise.weight.detach().clone(), torch.zeros(4, 8, 3, 3)]
    nn.init.dirac_(expected[0][::2], groups=4)
    assert_close(
        [one.weight.detach() for one in new[:2]], [*expected[:1], nn.init.dirac_(expected[1])]
    )
    assert new[1] is new[3]
    assert new[1].weight is new[2].weight


def test_order_with_a_whitened_first_layer_does_not_matter():
    images = torch.randn(50, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    one = initialize_convolutions(whiten_first_layer(model, images))
    other = whiten_first_layer(initialize_convolutions(model), images)

    assert_close(one.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    "conv",
    [
        nn.LazyConv2d(3, 3),
        nn.Conv2d(3, 3, 3, device="meta"),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 3)),
    ],
)
def test_weight_without_values_of_its_own_is_refused(conv):
    with pytest.raises(ValueError, match="weight of the convolution 0 is computed by"):
        initialize_convolutions(nn.Sequential(conv))
