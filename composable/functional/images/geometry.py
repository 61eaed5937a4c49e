"""Operations that move the pixels of an image. Pixels from outside of the image are black.

A pixel is looked up where it comes from, between the four pixels around (bilinear). A place within
the image but outside of the centres of its outermost pixels has their value, as in Pillow.
"""

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from composable._support.pixels import (
    GRAIN,
    Images,
    PerImage,
    check_images,
    like_images,
    per_image,
    values_of,
)

# The left and the upper edge belong to the image, the right and the lower don't. What comes from an
# edge to within what float32 loses is taken to come from the edge itself: this far, in tenths of a
# pixel when shifting, and as a part of half the width or height when rotating.
EDGE = 1e-6


def rotate(images: Images, degrees: PerImage) -> Images:
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
    # In the units of grid_sample the image reaches from -1 to 1. Pairs are complex numbers, which
    # is several times faster than torch.stack: one column for each x, and one row for each y.
    by_x = torch.complex(x * (cos * (2 / width)), x * (sin * (2 / height)))
    by_y = torch.complex(y * (sin * (-2 / width)), y * (cos * (2 / height)))
    grid = torch.view_as_real(by_x + by_y).expand(len(images), -1, -1, -1)
    sampled = grid_sample(values, grid, padding_mode="border", align_corners=False)
    # Only the places have a gradient, and not whether they are inside.
    by_x, by_y = by_x.detach(), by_y.detach()
    edge = torch.maximum(
        ((by_x.real + EDGE) + by_y.real).abs_(),
        ((by_x.imag + EDGE) + by_y.imag).abs_(),
    )
    inside = (edge <= 1)[:, None]
    return like_images(_cut_off(sampled, images).mul_(inside), images)


def shear_x(images: Images, factor: PerImage) -> Images:
    """Shift each row horizontally, in proportion to its distance from the upper edge.

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
    return like_images(_shift_rows(images, factor * rows), images)


def shear_y(images: Images, factor: PerImage) -> Images:
    """Shift each column vertically, in proportion to its distance from the left edge.

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
    return like_images(_shift_rows(images.mT, factor * columns).mT, images)


def translate_x(images: Images, pixels: PerImage) -> Images:
    """Shift each image horizontally by whole pixels.

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
    pixels = per_image("pixels", pixels, images)[:, 0, 0]
    return like_images(_shift_rows(images, _whole(pixels, images.shape[3])), images)


def translate_y(images: Images, pixels: PerImage) -> Images:
    """Shift each image vertically by whole pixels.

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
    height, width = images.shape[2:]
    pixels = _whole(per_image("pixels", pixels, images)[:, 0, 0], height)
    # All rows of a channel are one long row, which moves by so many whole ones.
    moved = _shift_rows(images.flatten(2).unsqueeze(2), pixels * width)
    return like_images(moved.reshape(images.shape), images)


def _whole(pixels: Tensor, length: int) -> Tensor:
    """Truncate to whole pixels. A shift by more than the length gives black, so it is clamped."""
    return pixels.clamp(-length, length).long()


def _shift_rows(images: Tensor, shift: Tensor) -> Tensor:
    """Read each row of each image from `shift` pixels to the right: `[batch, rows or 1]`.

    A fractional shift gives a fractional result. A row is copied as one contiguous stretch of
    memory, which on a CPU is several times faster than indexing every pixel.
    """
    batch, channels, height, width = images.shape
    if not images.numel():
        return images
    # Beyond its own width a row is black, whatever the shift.
    shift = shift.clamp(-width - 1, width + 1).expand(batch, height)
    whole = not shift.is_floating_point()
    pixels, nearest = shift, shift
    if not whole:
        pixels, nearest = shift.floor().long(), (shift + (0.5 + 10 * EDGE)).floor().long()
    # Both ends of a row are there twice, for what lies outside of the centres of its pixels.
    rows = torch.cat([images[..., :1], images, images[..., -1:]], -1)
    memory = pad(rows.reshape(-1), (width + 2, width + 2))
    starts = torch.arange(1, batch * channels * height + 1, device=images.device) * (width + 2) + 1
    starts = starts.reshape(batch, channels, height) + pixels[:, None]
    stretches = memory.unfold(0, width + 1, 1).index_select(0, starts.flatten())
    stretches = stretches.reshape(batch, channels, height, width + 1)
    # A stretch that reaches over the end of its row has got something of another one: not inside.
    inside = pad(rows.new_ones(width), (width + 2, width + 2)).unfold(0, width, 1)
    # Rows by index_select, which copies them as a whole: indexing looks up every pixel.
    inside = inside.index_select(0, (nearest + (width + 2)).flatten())
    inside = inside.reshape(batch, 1, height, width)
    if whole:
        return stretches[..., :-1].mul_(inside)
    values = values_of(stretches)
    weight = (shift - pixels)[:, None, :, None]
    moved = torch.lerp(values[..., :-1], values[..., 1:], weight)
    return _cut_off(moved, images).mul_(inside)


def _cut_off(values: Tensor, images: Tensor) -> Tensor:
    """Truncate the values if the images are uint8."""
    return values.add_(GRAIN).to(torch.uint8) if images.dtype == torch.uint8 else values
