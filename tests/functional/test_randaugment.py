"""RandAugment: the draw, and one strength per image; test_draws.py has its laws."""

import pytest
import torch

import composable.functional as F
from composable.functional import RandAugmentDraw, apply_randaugment, draw_randaugment, randaugment
from tests.support.tensors import noise, seeded

NAMES = [
    *("autocontrast", "equalize", "posterize", "rotate", "solarize", "shear_x", "shear_y"),
    *("translate_x", "translate_y", "color", "contrast", "brightness", "sharpness"),
]


def strengths(name, count=20000, **options):
    """Return the strengths that are drawn for one operation."""
    draw = draw_randaugment(count, depth=1, generator=seeded(), **options)
    return draw.strengths[draw.operations == NAMES.index(name)]


@pytest.mark.parametrize("augmentations", ["all", "safe", "original"])
def test_applies_drawn_operation_and_strength_to_each_image(augmentations):
    x = noise(96, 3, 20, 14)
    draw = draw_randaugment(96, depth=1, augmentations=augmentations, generator=seeded())

    result = apply_randaugment(x, draw)

    drawn = zip(draw.operations[0].tolist(), draw.strengths[0].tolist(), strict=True)
    for i, (number, strength) in enumerate(drawn):
        name = NAMES[number]
        operation = getattr(F.images, name)  # Pillow's: see test_image_operations.py
        sides = {"translate_x": x.shape[3], "translate_y": x.shape[2]}  # shares of these
        given = [] if number < 2 else [int(strength * sides[name]) if name in sides else strength]
        assert torch.equal(result[i : i + 1], operation(x[i : i + 1], *given))


def test_operations_are_applied_in_the_order_of_the_draw():
    x = noise(2, 3, 20, 14)
    draw = RandAugmentDraw(
        torch.tensor([[3, 2], [2, 3], [-1, 11]]),
        torch.tensor([[20.0, 2.0], [3.0, -15.0], [0.0, 0.5]]),
    )

    first, second = apply_randaugment(x, draw).split(1)

    assert torch.equal(first, F.images.posterize(F.images.rotate(x[:1], 20), 3))
    turned = F.images.rotate(F.images.posterize(x[1:], 2), -15)
    assert torch.equal(second, F.images.brightness(turned, 0.5))


@pytest.mark.parametrize(("augmentations", "count"), [("all", 13), ("safe", 9), ("original", 13)])
def test_operations_are_uniform(augmentations, count):
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
    if not whole or name == "rotate":  # either direction is equally likely
        neutral = 0 if low + high == 0 else 1
        assert (drawn - neutral).sign().mean().abs() < 0.1


FACTORS = pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])


@FACTORS
def test_original_factors_match_the_paper(name):
    drawn = strengths(name, severity=10, augmentations="original")

    assert 0.1 + 0.018 <= drawn.min() < 0.15
    assert 1.85 < drawn.max() <= 1.9
    assert (drawn.mean() - 1).abs() < 0.05


@FACTORS
@pytest.mark.parametrize("severity", [0.05, 0.5, 1.0])
def test_small_severity_gives_factors_near_one(name, severity):
    drawn = strengths(name, severity=severity)

    assert (drawn >= 1 - 0.09 * severity).all()
    assert (drawn <= 1).all()


def test_safe_set_accepts_any_number_of_channels():
    for channels in (2, 5):
        x = noise(40, channels, 20, 14)
        assert randaugment(x, augmentations="safe", generator=seeded()).shape == x.shape
