"""AugMix: chains of operations, mixed by random weights."""

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from composable.functional import (
    RandAugmentDraw,
    apply_augmix,
    apply_randaugment,
    augmix,
    draw_augmix,
)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=5, channels=3, height=16, width=12):
    shape = (batch, channels, height, width)
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded())


def test_the_mixture_is_that_of_the_paper():
    x = images() / 255
    draw = draw_augmix(5, generator=seeded(1))

    mixed = apply_augmix(x, draw)

    expected = torch.zeros_like(x)
    for chain, weight in enumerate(draw.chain_weights):
        one = RandAugmentDraw(draw.operations[:, chain], draw.strengths[:, chain])
        expected += weight.float().reshape(-1, 1, 1, 1) * apply_randaugment(x, one)
    m = draw.weight.float().reshape(-1, 1, 1, 1)
    assert_close(mixed, (1 - m) * x + m * expected)


def test_uint8_is_rounded_to_the_nearest_level():
    x, draw = images(), draw_augmix(5, generator=seeded(1))

    mixed = apply_augmix(x, draw)

    per_chain = zip(draw.operations.unbind(1), draw.strengths.unbind(1), strict=True)
    chains = torch.stack([apply_randaugment(x, RandAugmentDraw(*one)) for one in per_chain])
    w, m = draw.chain_weights[..., None, None, None], draw.weight[:, None, None, None]
    exact = (1 - m) * x + m * (w * chains).sum(0)
    assert (mixed - exact).abs().max() <= 0.5 + 1e-4


def test_augmenting_is_drawing_and_then_applying():
    for options in ({}, {"depth": 2, "width": 1, "severity": 7.5, "alpha": 0.3}):
        draw = draw_augmix(5, **options, generator=seeded(3))

        whole = augmix(images(), **options, generator=seeded(3))

        assert torch.equal(whole, apply_augmix(images(), draw))


def test_a_chain_has_one_to_three_operations():
    lengths = (draw_augmix(4000, generator=seeded()).operations >= 0).sum(0)

    shares = lengths.flatten().bincount(minlength=4) / lengths.numel()

    assert shares[0] == 0
    assert (shares[1:] - 1 / 3).abs().max() < 0.02


def test_a_chain_has_the_depth_that_is_asked_for():
    draw = draw_augmix(50, depth=4, width=2, generator=seeded())

    assert draw.operations.shape == (4, 2, 50)
    assert (draw.operations >= 0).all()


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.3, 1.0, 50.0, 1e300])
def test_weights_are_shares_for_every_alpha(alpha):
    draw = draw_augmix(500, alpha=alpha, generator=seeded())

    assert_close(draw.chain_weights.sum(0), torch.ones(500).double())
    assert (draw.chain_weights >= 0).all()
    assert ((draw.weight >= 0) & (draw.weight <= 1)).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_are_those_of_a_dirichlet_distribution(alpha):
    weights = draw_augmix(20000, alpha=alpha, generator=seeded()).chain_weights

    variance = (1 / 3) * (2 / 3) / (3 * alpha + 1)
    assert_close(weights.mean(1), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.01)
    assert_close(weights.var(1), torch.full((3,), variance).double(), rtol=0.06, atol=0)
    assert_close(weights[0].var(), weights[2].var(), rtol=0.1, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
def test_no_severity_changes_nothing(dtype):
    x = images().to(dtype) if dtype == torch.uint8 else (images() / 255).to(dtype)

    assert torch.equal(augmix(x, severity=0, generator=seeded()), x)


def test_without_weight_the_image_stays():
    draw = draw_augmix(5, severity=9, generator=seeded())._replace(weight=torch.zeros(5))

    assert torch.equal(apply_augmix(images(), draw), images())


@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
def test_dtype_layout_and_arguments_stay(dtype, still_generators):
    x = images() if dtype == torch.uint8 else (images() / 255).to(dtype)
    x = x.to(memory_format=torch.channels_last)
    before = x.clone()

    result = augmix(x, generator=seeded())

    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before)


def test_the_safe_set_takes_any_number_of_channels():
    assert augmix(images(9, 2), augmentations="safe", generator=seeded()).shape == (9, 2, 16, 12)
    with pytest.raises(ValueError, match=r'1 or 3 channels for \w+, not 2.*augmentations="safe"'):
        augmix(images(9, 2), generator=seeded())


def test_the_draw_is_one_and_of_the_same_batch(unchecked):
    with pytest.raises(TypeError, match="draw must be an AugMixDraw, not None"):
        apply_augmix(images(), None)
    with pytest.raises(ValueError, match="draw is for 4 images, but images has 5"):
        apply_augmix(images(), draw_augmix(4, generator=seeded()))


def test_images_are_a_batch(unchecked):
    with pytest.raises(ValueError, match=r"must have shape \[batch, channels, height, width\]"):
        F.augmix(torch.zeros(3, 4, 4))
