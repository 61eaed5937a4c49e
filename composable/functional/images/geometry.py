"""Operations that move the pixels of an image. What comes in from outside is black.

A pixel is looked up where it comes from, between the four pixels around (bilinear). A place within
the image but outside of the centres of its outermost pixels has their value, as in Pillow.
"""

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from ._values import GRAIN, check_images, finish, per_image, values_of

__all__ = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]

# The left and the upper edge belong to the image, the right and the lower don't. What comes from an
# edge to within what float32 loses is taken to come from the edge itself: this far, in tenths of a
# pixel when shifting, and as a part of half the width or height when rotating.
_EDGE = 1e-6


def rotate(
    images: Shaped[Tensor, "batch channels height width"], degrees: Shaped[Tensor, " batch"] | float
) -> Shaped[Tensor, "batch channels height width"]:
    """Rotate each image about its centre.

    Args:
        images: uint8, or floats.
        degrees: Counter-clockwise: one for all images, or one for each, `[batch]`.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the angle is infinite.

    Example:
        >>> F.images.rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90).round()
        tensor([[[[2., 4.],
                  [1., 3.]]]])
    """
    check_images(images)
    angle = per_image("degrees", degrees, images).deg2rad()[:, 0]
    height, width = images.shape[2:]
    if not images.numel():
        return images.clone()
    values = values_of(images)
    # Centres of pixels, from the centre of the image. Row numbers grow downwards.
    x = torch.arange(width, device=images.device, dtype=values.dtype) - (width - 1) / 2
    y = (torch.arange(height, device=images.device, dtype=values.dtype) - (height - 1) / 2)[:, None]
    cos, sin = angle.cos(), angle.sin()
    # In the units of grid_sample the image reaches from -1 to 1.
    from_x = x * (cos * (2 / width)) - y * (sin * (2 / width))
    from_y = x * (sin * (2 / height)) + y * (cos * (2 / height))
    # Interleaved as complex numbers, which is several times faster than torch.stack.
    grid = torch.view_as_real(torch.complex(from_x, from_y)).expand(len(images), -1, -1, -1)
    sampled = grid_sample(values, grid, padding_mode="border", align_corners=False)
    # Only the places have a gradient, and not whether they are inside.
    edge = torch.maximum(
        (from_x.detach() + _EDGE).abs_(),
        (from_y.detach() + _EDGE).abs_(),
    )
    inside = (edge <= 1)[:, None]
    return finish(_cut_off(sampled, images).mul_(inside), images)


def shear_x(
    images: Shaped[Tensor, "batch channels height width"], factor: Shaped[Tensor, " batch"] | float
) -> Shaped[Tensor, "batch channels height width"]:
    """Move each row sideways, the lower the further. The upper edge stays.

    Args:
        images: uint8, or floats.
        factor: Pixel (x, y) comes from (x + factor * y, y), so a positive one moves to the left.
            One for all images, or one for each, `[batch]`.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is infinite.

    Example:
        >>> F.images.shear_x(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2.0)
        tensor([[[[2., 0.],
                  [0., 0.]]]])
    """
    check_images(images)
    factor = per_image("factor", factor, images)[:, 0, 0]
    rows = torch.arange(images.shape[2], device=images.device, dtype=factor.dtype) + 0.5
    return finish(_shift_rows(images, factor * rows), images)


def shear_y(
    images: Shaped[Tensor, "batch channels height width"], factor: Shaped[Tensor, " batch"] | float
) -> Shaped[Tensor, "batch channels height width"]:
    """Move each column up or down, the further right the further. The left edge stays.

    Args:
        images: uint8, or floats.
        factor: Pixel (x, y) comes from (x, y + factor * x), so a positive one moves up. One for all
            images, or one for each, `[batch]`.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is infinite.

    Example:
        >>> F.images.shear_y(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2.0)
        tensor([[[[3., 0.],
                  [0., 0.]]]])
    """
    check_images(images)
    factor = per_image("factor", factor, images)[:, 0, 0]
    columns = torch.arange(images.shape[3], device=images.device, dtype=factor.dtype) + 0.5
    return finish(_shift_rows(images.mT, factor * columns).mT, images)


def translate_x(
    images: Shaped[Tensor, "batch channels height width"], pixels: Shaped[Tensor, " batch"] | float
) -> Shaped[Tensor, "batch channels height width"]:
    """Move each image sideways by whole pixels.

    Args:
        images: uint8, or floats.
        pixels: Pixel (x, y) comes from (x + pixels, y), so a positive one moves to the left.
            Fractions are cut off. One for all images, or one for each, `[batch]`.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the number is infinite.

    Example:
        >>> F.images.translate_x(torch.tensor([[[[1.0, 2.0, 3.0]]]]), 1)
        tensor([[[[2., 3., 0.]]]])
    """
    check_images(images)
    pixels = per_image("pixels", pixels, images)[:, 0, 0].trunc()
    return finish(_shift_rows(images, pixels, whole=True), images)


def translate_y(
    images: Shaped[Tensor, "batch channels height width"], pixels: Shaped[Tensor, " batch"] | float
) -> Shaped[Tensor, "batch channels height width"]:
    """Move each image up or down by whole pixels.

    Args:
        images: uint8, or floats.
        pixels: Pixel (x, y) comes from (x, y + pixels), so a positive one moves up. Fractions are
            cut off. One for all images, or one for each, `[batch]`.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the number is infinite.

    Example:
        >>> F.images.translate_y(torch.tensor([[[[1.0], [2.0], [3.0]]]]), -1).flatten()
        tensor([0., 1., 2.])
    """
    check_images(images)
    pixels = per_image("pixels", pixels, images)[:, 0, 0].trunc()
    return finish(_shift_rows(images.mT, pixels, whole=True).mT, images)


def _shift_rows(images: Tensor, shift: Tensor, *, whole: bool = False) -> Tensor:
    """Read each row of each image from `shift` pixels to the right: `[batch, rows or 1]`.

    The result has its fractions. A row is one contiguous stretch of memory that is copied, which on
    a CPU is several times faster than to look up every pixel.
    """
    batch, channels, height, width = images.shape
    if not images.numel():
        return images
    # Beyond its own width a row is black, whatever the shift.
    shift = shift.clamp(-width - 1, width + 1).expand(batch, height)
    pixels = shift.floor()
    # Both ends of a row are there twice, for what lies outside of the centres of its pixels.
    rows = torch.cat([images[..., :1], images, images[..., -1:]], -1)
    memory = pad(rows.reshape(-1), (width + 2, width + 2))
    starts = torch.arange(1, batch * channels * height + 1, device=images.device) * (width + 2) + 1
    starts = starts.reshape(batch, channels, height) + pixels.long()[:, None]
    stretches = memory.unfold(0, width + 1, 1).index_select(0, starts.flatten())
    stretches = stretches.reshape(batch, channels, height, width + 1)
    # A stretch that reaches over the end of its row has got something of another one: not inside.
    places = torch.arange(3 * width + 4, device=images.device) - (width + 2)
    inside = ((places >= 0) & (places < width)).to(images.dtype).unfold(0, width, 1)
    inside = inside[(shift + (0.5 + 10 * _EDGE)).floor().long() + width + 2][:, None]
    if whole:
        return stretches[..., :-1].mul_(inside)
    values = values_of(stretches)
    weight = (shift - pixels)[:, None, :, None]
    moved = torch.lerp(values[..., :-1], values[..., 1:], weight)
    return _cut_off(moved, images).mul_(inside)


def _cut_off(values: Tensor, images: Tensor) -> Tensor:
    """Cut off the fractions where the images are uint8."""
    return values.add_(GRAIN).to(torch.uint8) if images.dtype == torch.uint8 else values
