"""Dirac initialization, and whitening by the first layer against the code of airbench."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.algorithms import EMA, WhitenedFirstLayer
from tests.cases.whiten_first_layer import sample
from tests.support.models import same, seeded, weights
from tests.support.runs import VISION


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("outputs", [4, 8, 12])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_weights_are_those_of_torch_in_the_first_filters_of_each_group(kind, outputs, groups):
    conv = kind(4, outputs, 3, groups=groups)
    new = F.initialize_convolutions(nn.Sequential(conv))[0]
    inputs = 4 // groups
    expected = conv.weight.detach().clone()
    for group in expected.chunk(groups):
        nn.init.dirac_(group[:inputs])

    assert_close(new.weight.detach(), expected)
    assert new.bias is conv.bias


def test_layout_and_dtype_of_a_weight_stay():
    conv = nn.Conv2d(3, 8, 3).bfloat16().to(memory_format=torch.channels_last)
    new = F.initialize_convolutions(conv)

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
    new = F.initialize_convolutions(model)

    same = [a is b for a, b in zip(model.parameters(), new.parameters(), strict=True)]
    assert same == [True] * 8 + [False, True]


def test_a_model_whose_convolutions_are_frozen_is_returned_with_a_warning():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 1)).requires_grad_(False)

    with pytest.warns(F.NoEffectWarning, match="odd kernels that are trained"):
        assert F.initialize_convolutions(model) is model


def test_a_depthwise_shared_and_tied_kernel_and_one_of_fewer_outputs_copy_too():
    depthwise, narrow = nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 4, 3)
    tied = nn.Conv2d(8, 4, 3)
    tied.weight = narrow.weight
    model = nn.Sequential(depthwise, narrow, tied, narrow)
    new = F.initialize_convolutions(model)

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
    one = F.initialize_convolutions(F.whiten_first_layer(model, images))
    other = F.whiten_first_layer(F.initialize_convolutions(model), images)

    assert_close(one.state_dict(), other.state_dict())


# --- whitening by the first layer ---


def smooth_images(count=200, channels=3, side=8, dtype=torch.float32):
    noise = torch.randn(
        count, channels, side + 2, side + 2, generator=torch.Generator().manual_seed(1)
    )
    return nn.functional.avg_pool2d(noise, 3, stride=1).to(dtype)


def airbench(images, size, eps=5e-4):
    """Compute the filters by the code of airbench94, whose signs are arbitrary."""
    h, w = size
    patches = images.unfold(2, h, 1).unfold(3, w, 1).transpose(1, 3)
    patches = patches.reshape(-1, images.shape[1], h, w).float()
    n, c, h, w = patches.shape
    values, vectors = torch.linalg.eigh(torch.cov(patches.view(n, c * h * w).t()), UPLO="U")
    values = values.flip(0).view(-1, 1, 1, 1)
    return vectors.t().reshape(c * h * w, c, h, w).flip(0) / torch.sqrt(values + eps)


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (1, 1)])
def test_filters_are_those_of_airbench_up_to_the_sign(size):
    images = smooth_images()
    # airbench transposes the rows and columns of places, not those of patches
    theirs, ours = airbench(images, size), F.whitening_filters(images, size)

    signs = (ours * theirs).sum((1, 2, 3), keepdim=True).sign()

    assert_close(ours, theirs * signs, rtol=1e-3, atol=1e-3)


def test_outputs_are_uncorrelated_with_variance_below_one():
    images = smooth_images(dtype=torch.float64)
    filters = F.whitening_filters(images, (2, 2), eps=1e-9)

    outputs = nn.functional.conv2d(images, filters).transpose(0, 1).flatten(1)

    assert_close(outputs.cov(), torch.eye(12, dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_sign_does_not_depend_on_the_solver():
    images = smooth_images()
    plain = F.whitening_filters(images, (2, 2))

    mirrored = F.whitening_filters(-images, (2, 2))
    doubled = F.whitening_filters(torch.cat([images, images]), (2, 2))

    assert_close(mirrored, plain)  # the covariance is the same
    assert_close(doubled, plain, rtol=1e-3, atol=1e-3)
    flat = plain.flatten(1)
    first = (flat.abs() >= flat.abs().amax(1, keepdim=True) / 2).int().argmax(1)
    assert (flat[torch.arange(12), first] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    images = smooth_images(dtype=dtype)

    assert torch.equal(
        F.whitening_filters(images, (2, 2)), F.whitening_filters(images.float(), (2, 2)).to(dtype)
    )


@pytest.mark.parametrize("outputs", [24, 8, 7, 1])
def test_first_convolution_has_pairs_of_the_first_filters(outputs):
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, outputs, 2), nn.Conv2d(outputs, 4, 1)))
    before, images = weights(model), smooth_images()

    new = F.whiten_first_layer(model, images)

    filters, half = F.whitening_filters(images, (2, 2)), -(-outputs // 2)
    assert torch.equal(new[0].weight[:half], filters[:half])
    assert torch.equal(new[0].weight[half:], -filters[: outputs - half])
    assert [n for n, p in new.named_parameters() if not p.requires_grad] == ["0.weight"]
    assert all(p.requires_grad for p in model.parameters())
    assert new[1].weight is model[1].weight
    assert same(weights(model), before)
    assert new.state_dict().keys() == model.state_dict().keys()


def test_convolution_alone_keeps_its_dtype():
    new = F.whiten_first_layer(nn.Conv2d(3, 4, 2).bfloat16(), smooth_images())

    assert new.weight.dtype is torch.bfloat16
    assert not new.weight.requires_grad


def test_model_without_convolution_warns():
    model = nn.Linear(2, 2)

    with pytest.warns(F.NoEffectWarning, match="Conv2d"):
        assert F.whiten_first_layer(model, smooth_images()) is model


# --- runs ---


def test_filters_stay_and_the_rest_trains():
    algorithms = [WhitenedFirstLayer(sample), EMA(half_life="2ba")]
    model = VISION.trainer(algorithms=algorithms).fit().model

    expected = F.whiten_first_layer(VISION.model(), sample())
    assert torch.equal(model[0].weight, expected[0].weight)
    assert not torch.equal(model[6].weight, expected[6].weight)


def test_sample_that_is_no_images_is_an_error(unchecked):
    with pytest.raises(TypeError, match="inputs must be a tensor"):
        VISION.trainer(algorithms=[WhitenedFirstLayer(lambda: [1.0])])
