"""Whitening by the first layer, against the code of airbench."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from composable.algorithms import EMA, WhitenedFirstLayer
from composable.functional import NoEffectWarning, whiten_first_layer, whitening_filters
from tests.cases.whiten_first_layer import sample
from tests.support.models import same, seeded, weights
from tests.support.runs import VISION


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
    theirs, ours = airbench(images, size), whitening_filters(images, size)

    signs = (ours * theirs).sum((1, 2, 3), keepdim=True).sign()

    assert_close(ours, theirs * signs, rtol=1e-3, atol=1e-3)


def test_outputs_are_uncorrelated_with_variance_below_one():
    images = smooth_images(dtype=torch.float64)
    filters = whitening_filters(images, (2, 2), eps=1e-9)

    outputs = nn.functional.conv2d(images, filters).transpose(0, 1).flatten(1)

    assert_close(outputs.cov(), torch.eye(12, dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_sign_does_not_depend_on_the_solver():
    images = smooth_images()
    plain = whitening_filters(images, (2, 2))

    mirrored = whitening_filters(-images, (2, 2))
    doubled = whitening_filters(torch.cat([images, images]), (2, 2))

    assert_close(mirrored, plain)  # the covariance is the same
    assert_close(doubled, plain, rtol=1e-3, atol=1e-3)
    flat = plain.flatten(1)
    first = (flat.abs() >= flat.abs().amax(1, keepdim=True) / 2).int().argmax(1)
    assert (flat[torch.arange(12), first] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    images = smooth_images(dtype=dtype)

    assert torch.equal(
        whitening_filters(images, (2, 2)), whitening_filters(images.float(), (2, 2)).to(dtype)
    )


@pytest.mark.parametrize("outputs", [24, 8, 7, 1])
def test_first_convolution_has_pairs_of_the_first_filters(outputs):
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, outputs, 2), nn.Conv2d(outputs, 4, 1)))
    before, images = weights(model), smooth_images()

    new = whiten_first_layer(model, images)

    filters, half = whitening_filters(images, (2, 2)), -(-outputs // 2)
    assert torch.equal(new[0].weight[:half], filters[:half])
    assert torch.equal(new[0].weight[half:], -filters[: outputs - half])
    assert [n for n, p in new.named_parameters() if not p.requires_grad] == ["0.weight"]
    assert all(p.requires_grad for p in model.parameters())
    assert new[1].weight is model[1].weight
    assert same(weights(model), before)
    assert new.state_dict().keys() == model.state_dict().keys()


def test_convolution_alone_keeps_its_dtype():
    new = whiten_first_layer(nn.Conv2d(3, 4, 2).bfloat16(), smooth_images())

    assert new.weight.dtype is torch.bfloat16
    assert not new.weight.requires_grad


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.Conv2d(3, 25, 2), "has 25 output channels, but patches of 3 x 2 x 2 give at m"),
        (lambda: nn.Conv2d(2, 4, 2), "must have the 2 channels of the first convolution, 0, not 3"),
        (lambda: nn.Conv2d(3, 3, 2, groups=3), "has groups=3"),
        (lambda: nn.Conv2d(3, 3, 2, dilation=2), r"dilation=\(2, 2\)"),
        (lambda: nn.LazyConv2d(3, 2), "0, is computed by a parametrization or not yet known"),
        (lambda: parametrizations.weight_norm(nn.Conv2d(3, 3, 2)), "is computed by a parametriz"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_convolutions_that_cannot_whiten_are_refused_by_name(layer, message):
    with pytest.raises(ValueError, match=message):
        whiten_first_layer(nn.Sequential(layer()), smooth_images())


def test_model_without_convolution_warns():
    model = nn.Linear(2, 2)

    with pytest.warns(NoEffectWarning, match="Conv2d"):
        assert whiten_first_layer(model, smooth_images()) is model


# --- runs ---


def test_filters_stay_and_the_rest_trains_and_resumes(tmp_path):
    def run(**options):
        algorithms = [WhitenedFirstLayer(sample), EMA(half_life="2ba")]
        return VISION.trainer(algorithms=algorithms, **options).fit()

    whole = run(save_folder=tmp_path, save_interval="1ba")

    expected = whiten_first_layer(VISION.model(), sample())
    assert torch.equal(whole.model[0].weight, expected[0].weight)
    assert not torch.equal(whole.model[6].weight, expected[6].weight)
    assert same(weights(whole.model), weights(run(load_path=tmp_path / "ep0-ba2").model))


def test_sample_that_is_no_images_is_an_error():
    with pytest.raises(TypeError, match="inputs must be a tensor"):
        VISION.trainer(algorithms=[WhitenedFirstLayer(lambda: [1.0])])
