"""RandAugment: the draw, and one strength per image."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

import composable.functional as F
from composable.functional import (
    RandAugmentDraw,
    apply_randaugment,
    draw_randaugment,
    randaugment,
)

NAMES = [
    *("autocontrast", "equalize", "posterize", "rotate", "solarize", "shear_x", "shear_y"),
    *("translate_x", "translate_y", "color", "contrast", "brightness", "sharpness"),
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=6, channels=3, height=20, width=14):
    return torch.randint(
        256, (batch, channels, height, width), dtype=torch.uint8, generator=seeded()
    )


def strengths(name, count=20000, **options):
    """Return the strengths that are drawn for one operation."""
    draw = draw_randaugment(count, depth=1, generator=seeded(), **options)
    return draw.strengths[draw.operations == NAMES.index(name)]


def moved(*matrix):
    return lambda i: i.transform(i.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


PILLOW = {
    "autocontrast": lambda i, s: ImageOps.autocontrast(i),
    "equalize": lambda i, s: ImageOps.equalize(i),
    "posterize": lambda i, s: ImageOps.posterize(i, int(s)),
    "rotate": lambda i, s: i.rotate(s, Image.Resampling.BILINEAR),
    "solarize": lambda i, s: ImageOps.solarize(i, int(s)),
    "shear_x": lambda i, s: moved(1, s, 0, 0, 1, 0)(i),
    "shear_y": lambda i, s: moved(1, 0, 0, s, 1, 0)(i),
    "translate_x": lambda i, s: moved(1, 0, int(s * i.width), 0, 1, 0)(i),
    "translate_y": lambda i, s: moved(1, 0, 0, 0, 1, int(s * i.height))(i),
    "color": lambda i, s: ImageEnhance.Color(i).enhance(s),
    "contrast": lambda i, s: ImageEnhance.Contrast(i).enhance(s),
    "brightness": lambda i, s: ImageEnhance.Brightness(i).enhance(s),
    "sharpness": lambda i, s: ImageEnhance.Sharpness(i).enhance(s),
}


@pytest.mark.parametrize("augmentations", ["all", "safe", "original"])
def test_one_operation_is_that_of_pillow_on_each_image(augmentations):
    x = images(96)
    draw = draw_randaugment(96, depth=1, augmentations=augmentations, generator=seeded())

    result = apply_randaugment(x, draw)

    for image, ours, number, strength in zip(
        x, result, draw.operations[0].tolist(), draw.strengths[0].tolist(), strict=True
    ):
        picture = PILLOW[NAMES[number]](Image.fromarray(image.permute(1, 2, 0).numpy()), strength)
        theirs = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        assert (ours.int() - theirs.int()).abs().max() <= 1


def test_operations_follow_one_another_in_the_order_of_the_draw():
    x = images(2)
    draw = RandAugmentDraw(
        torch.tensor([[3, 2], [2, 3], [-1, 11]]),
        torch.tensor([[20.0, 2.0], [3.0, -15.0], [0.0, 0.5]]),
    )

    first, second = apply_randaugment(x, draw).split(1)

    assert torch.equal(first, F.images.posterize(F.images.rotate(x[:1], 20), 3))
    turned = F.images.rotate(F.images.posterize(x[1:], 2), -15)
    assert torch.equal(second, F.images.brightness(turned, 0.5))


def test_augmenting_is_drawing_and_then_applying():
    for options in ({}, {"depth": 3, "severity": 4.5, "augmentations": "safe"}):
        draw = draw_randaugment(6, **options, generator=seeded(3))

        whole = randaugment(images(), **options, generator=seeded(3))

        assert torch.equal(whole, apply_randaugment(images(), draw))


@pytest.mark.parametrize(("augmentations", "count"), [("all", 13), ("safe", 9), ("original", 13)])
def test_every_operation_of_the_set_is_equally_likely(augmentations, count):
    draw = draw_randaugment(13000, augmentations=augmentations, generator=seeded())

    counts = draw.operations.flatten().bincount(minlength=13)

    assert (counts[count:] == 0).all()
    assert (counts[:count] / 26000 - 1 / count).abs().max() < 0.01


@pytest.mark.parametrize(
    ("name", "low", "high", "whole"),
    [
        ("posterize", 1, 4, True),
        ("solarize", 256 - 230, 256 - 2, True),
        ("rotate", -26, 26, True),
        ("shear_x", -0.27, 0.27, False),
        ("shear_y", -0.27, 0.27, False),
        ("translate_x", -0.3, 0.3, False),
        ("translate_y", -0.3, 0.3, False),
        ("color", 1 - 0.81, 9, False),
        ("contrast", 1 - 0.81, 9, False),
        ("sharpness", 1 - 0.81, 9, False),
        ("brightness", 1 - 0.81, 0.75 * 9, False),
    ],
)
def test_strengths_fill_their_range(name, low, high, whole):
    drawn = strengths(name, severity=9)

    assert low <= drawn.min() <= low + 0.01 * (high - low) + whole
    assert high - 0.01 * (high - low) - whole <= drawn.max() <= high
    assert torch.equal(drawn, drawn.round()) == whole


@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_the_original_factors_grow_with_the_level(name):
    drawn = strengths(name, severity=10, augmentations="original")

    assert 0.1 + 0.018 <= drawn.min() < 0.15
    assert 1.85 < drawn.max() <= 1.9
    assert (drawn.mean() - 1).abs() < 0.05


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_either_direction_is_equally_likely(name):
    assert (strengths(name).sign().mean()).abs() < 0.1


def test_half_of_the_factors_are_above_one():
    assert ((strengths("color") > 1).double().mean() - 0.5).abs() < 0.05


@pytest.mark.parametrize("severity", [0.05, 0.5, 1.0])
def test_a_small_severity_changes_factors_little(severity):
    for name in ("color", "contrast", "brightness", "sharpness"):
        drawn = strengths(name, severity=severity)
        assert (drawn >= 1 - 0.09 * severity).all()
        assert (drawn <= 1).all()


@pytest.mark.parametrize("options", [{"severity": 0}, {"depth": 0}])
@pytest.mark.parametrize("augmentations", ["all", "safe", "original"])
def test_no_severity_and_no_depth_change_nothing(options, augmentations):
    x = images()

    result = randaugment(x, augmentations=augmentations, generator=seeded(), **options)

    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


def test_a_draw_is_pinned_by_its_seed():
    draw = draw_randaugment(3, generator=seeded(17))

    assert draw.operations.tolist() == PINNED_OPERATIONS
    torch.testing.assert_close(draw.strengths, torch.tensor(PINNED_STRENGTHS).double())


PINNED_OPERATIONS = [[0, 12, 6], [5, 3, 5]]
PINNED_STRENGTHS = [
    [0.0, 6.969812050717365, 0.04867114615409818],
    [0.17462797098482452, 22.0, 0.003225967216362896],
]


@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
def test_dtype_layout_and_arguments_stay(dtype, still_generators):
    x = images() if dtype == torch.uint8 else (images() / 255).to(dtype)
    x = x.to(memory_format=torch.channels_last)
    before = x.clone()

    result = randaugment(x, generator=seeded())

    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before)
    assert torch.equal(result, randaugment(x.contiguous(), generator=seeded()))


def test_the_safe_set_takes_any_number_of_channels():
    for channels in (2, 5):
        x = images(40, channels)
        assert randaugment(x, augmentations="safe", generator=seeded()).shape == x.shape


def test_other_sets_say_so_of_other_channels():
    with pytest.raises(ValueError, match=r'1 or 3 channels for \w+, not 2.*augmentations="safe"'):
        randaugment(images(40, 2), generator=seeded())


def test_gradients_reach_the_images_they_came_from():
    x = torch.rand(3, 3, 4, 4, dtype=torch.float64, generator=seeded()).requires_grad_()
    draw = RandAugmentDraw(
        torch.tensor([[11, 3, 5], [9, 11, 12]]), torch.tensor([[0.5, 10.0, 0.1], [0.7, 0.9, 0.5]])
    )

    assert torch.autograd.gradcheck(lambda x: apply_randaugment(x, draw), x)


def test_a_batch_has_no_negative_size():
    with pytest.raises(ValueError, match="batch_size=-1 must be at least 0"):
        draw_randaugment(-1)


def test_the_draw_is_one_and_of_the_same_batch(unchecked):
    with pytest.raises(TypeError, match="draw must be a RandAugmentDraw, not an int"):
        apply_randaugment(images(), 3)
    with pytest.raises(ValueError, match=r"draw is for \(5,\) images, but images has 6"):
        apply_randaugment(images(), draw_randaugment(5, generator=seeded()))


@pytest.mark.parametrize("x", [torch.zeros(3, 4, 4), torch.zeros(4)])
def test_images_are_a_batch(x, unchecked):
    with pytest.raises(ValueError, match=r"must have shape \[batch, channels, height, width\]"):
        randaugment(x)
