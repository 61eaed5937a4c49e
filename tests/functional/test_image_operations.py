"""Each operation is that of Pillow, on a whole batch, in every dtype and layout."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.testing import assert_close

import composable.functional as F
from tests.support.folded import folded
from tests.support.tensors import noise, seeded


def ramps(*shape):
    """Build images without noise, and so with few levels and long edges."""
    batch, channels, height, width = shape
    across, down = torch.arange(width), torch.arange(height)[:, None]
    scale = torch.arange(1, batch * channels + 1).reshape(batch, channels, 1, 1)
    return ((across * scale + 2 * down) % 256).to(torch.uint8)


IMAGES = {
    "RGB": noise(3, 3, 31, 46),
    "ramps": ramps(3, 3, 40, 24),
    "dim": noise(2, 3, 17, 33) // 2 + 40,
    "grey": noise(3, 1, 20, 33),
    "one column": noise(2, 3, 9, 1),
    "one row": noise(2, 3, 1, 9),
    "of two values": noise(2, 3, 20, 40) // 128 * 90,
    "of one value": torch.full((1, 3, 6, 6), 77, dtype=torch.uint8),
}


def affine(*matrix):
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )


def enhance(kind, factor):
    return lambda image: getattr(ImageEnhance, kind)(image).enhance(factor)


def cases():
    """Yield the name of an operation, its strengths, and Pillow's operation at a strength."""
    yield "autocontrast", [None], lambda s: ImageOps.autocontrast
    yield "equalize", [None], lambda s: ImageOps.equalize
    factors = [0.0, 0.19, 0.5, 0.87, 1.0, 1.3, 2.5, 9.0]
    yield "posterize", list(range(1, 9)), lambda s: lambda i: ImageOps.posterize(i, s)
    yield "solarize", [0, 1, 100, 255, 256], lambda s: lambda i: ImageOps.solarize(i, s)
    yield (
        "rotate",
        [0.0, 1.0, -7.0, 13.5, 30.0, -89.0, 90.0, 180.0, 300.0],
        lambda s: lambda i: i.rotate(s, Image.Resampling.BILINEAR),
    )
    shears, pixels = [0.0, 0.03, -0.2, 0.3, 0.5, 1.0, -2.5], [0, 1, -3, 8, -100]
    yield "shear_x", shears, lambda s: affine(1, s, 0, 0, 1, 0)
    yield "shear_y", shears, lambda s: affine(1, 0, 0, s, 1, 0)
    yield "translate_x", pixels, lambda s: affine(1, 0, s, 0, 1, 0)
    yield "translate_y", pixels, lambda s: affine(1, 0, 0, 0, 1, s)
    for name in ("color", "contrast", "brightness", "sharpness"):
        yield name, factors, lambda s, name=name: enhance(name.title(), s)


CASES = [(name, strength, make(strength)) for name, all_of, make in cases() for strength in all_of]
EXACT = {"equalize", "posterize", "solarize", "translate_x", "translate_y"}


def through_pillow(images, operation):
    results = []
    for image in images:
        array = image.permute(1, 2, 0).numpy()
        picture = Image.fromarray(array if len(image) == 3 else array[..., 0])
        result = torch.from_numpy(np.array(operation(picture)))
        results.append(result.permute(2, 0, 1) if len(image) == 3 else result[None])
    return torch.stack(results)


def largest_difference(ours, theirs):
    return (ours.double() - theirs.double()).abs().max().item()


@pytest.mark.parametrize("images", IMAGES.values(), ids=IMAGES)
@folded("name,strength,pillow", CASES)
def test_matches_pillow_within_one_grey_level(name, strength, pillow, images):
    operation, expected = getattr(F.images, name), through_pillow(images, pillow)
    given = () if strength is None else (strength,)

    assert largest_difference(operation(images, *given), expected) <= (name not in EXACT)
    tolerance = 1.001 if strength is None else 1.01
    assert largest_difference(255 * operation(images / 255, *given), expected) <= tolerance


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y"])
def test_few_pixels_differ_from_pillow(name):
    images = noise(4, 3, 48, 64)
    pillow = {n: make for n, _, make in cases()}[name]

    ours = getattr(F.images, name)(images, 0.27)

    assert (ours != through_pillow(images, pillow(0.27))).double().mean() < 0.04


NEUTRAL = {
    **{"posterize": 8.0, "solarize": 256.0},
    **dict.fromkeys(["rotate", "shear_x", "shear_y", "translate_x", "translate_y"], 0.0),
    **dict.fromkeys(["color", "contrast", "brightness", "sharpness"], 1.0),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_strength_is_the_identity(name):
    images, strength = noise(3, 3, 13, 7), NEUTRAL[name]

    assert torch.equal(getattr(F.images, name)(images, strength), images)
    tolerance = 1 / 510 if name == "posterize" else 1e-4 if name == "rotate" else 0
    floats = torch.rand(3, 3, 13, 7, generator=seeded())
    assert_close(getattr(F.images, name)(floats, strength), floats, rtol=0, atol=tolerance + 1e-9)


@pytest.mark.parametrize("name", ["autocontrast", "equalize", *NEUTRAL])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_close_to_float64(name, dtype):
    images = (noise(4, 3, 12, 10) / 255).to(dtype)
    strengths = [torch.tensor([NEUTRAL[name], 0.3, 1.0, 2.0])] if name in NEUTRAL else []
    strengths = [strengths[0].clamp(min=1).floor()] if name == "posterize" else strengths

    result = getattr(F.images, name)(images, *strengths)

    exact = getattr(F.images, name)(images.double(), *strengths)
    assert result.dtype == dtype
    assert_close(result.double(), exact, rtol=0, atol=torch.finfo(dtype).eps + 1e-4)
