"""Operations that map every value of an image to another value."""

import torch
from torch import Tensor

from composable._support.pixels import (
    GRAIN,
    Images,
    PerImage,
    check_images,
    grey_levels,
    like_images,
    per_image,
    values_of,
    white_of,
)


def autocontrast(
    images: Images,
) -> Images:
    """Stretch the values of each channel of each image to the range from black to white.

    Args:
        images: uint8, or floats in [0, 1].

    Returns:
        New images. A channel of one value stays as it is.

    Raises:
        TypeError: The images are not a tensor, or of another dtype.
        ValueError: They are not `[batch, channels, height, width]`.

    Example:
        >>> F.images.autocontrast(torch.tensor([[[[0.25, 0.5, 0.75]]]]))
        tensor([[[[0.0000, 0.5000, 1.0000]]]])
    """
    check_images(images)
    if not images.numel():
        return images.clone()
    low, high = (values_of(end(images, (2, 3), keepdim=True)) for end in (torch.amin, torch.amax))
    flat, white = low == high, white_of(images)
    scale = torch.where(flat, 1, white / torch.where(flat, 1, high - low))
    grain = GRAIN if images.dtype == torch.uint8 else 0
    offset = grain - torch.where(flat, 0, low * scale)
    return like_images(values_of(images).mul_(scale).add_(offset), images)


def equalize(
    images: Images,
) -> Images:
    """Spread the values of each channel of each image evenly, by its cumulative histogram.

    Args:
        images: uint8, or floats in [0, 1], which are rounded to 256 grey levels.

    Returns:
        New images, without a gradient. A channel of one level stays as it is.

    Raises:
        TypeError: The images are not a tensor, or of another dtype.
        ValueError: They are not `[batch, channels, height, width]`.

    Example:
        >>> F.images.equalize(torch.tensor([[[[10, 20]]]], dtype=torch.uint8).repeat(1, 1, 400, 1))
        tensor([[[[  0, 255], ...
    """
    check_images(images)
    if not images.numel():
        return images.clone()
    channels = images.shape[0] * images.shape[1]
    start = torch.arange(0, 256 * channels, 256, dtype=torch.int32, device=images.device)
    index = grey_levels(images).reshape(channels, -1).to(torch.int32).add_(start[:, None]).flatten()
    # Counted in floats, which the CPU adds fastest, and which are exact up to 16 million pixels.
    one = torch.ones((), device=images.device).expand(len(index))
    counts = torch.zeros(256 * channels, device=images.device).index_add(0, index, one)
    table = _equalizing_table(counts.reshape(channels, 256), images.shape[2:].numel())
    table = table.to(torch.uint8).flatten()
    looked_up = table.index_select(0, index).reshape(images.shape)
    return like_images(looked_up if images.dtype == torch.uint8 else looked_up / 255, images)


def _equalizing_table(counts: Tensor, pixels: int) -> Tensor:
    """Return the new level of each level, computed in whole numbers as in Pillow.

    Floats are divided fastest, and the integer part of such a quotient is exact.
    """
    levels = torch.arange(256, device=counts.device)
    below = counts.cumsum(1).sub_(counts)
    # All pixels but the brightest level's; above it, all of them are below.
    step = ((below * (below < pixels)).amax(1, keepdim=True) / 255).floor_()
    spread = ((below + (step / 2).floor_()) / step.clamp(min=1)).floor_()
    return torch.where(step == 0, levels, spread.clamp_(max=255))


def posterize(images: Images, bits: PerImage) -> Images:
    """Keep the first bits of every value, and set the others to zero.

    Args:
        images: uint8, or floats in [0, 1], which are rounded to 256 grey levels.
        bits: The number of bits to keep, whole numbers from 1 to 8 (all of them): one for all
            images, or one for each, `[batch]`. A tensor is not checked.

    Returns:
        New images, without a gradient.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the bits are not within 1 and 8.

    Example:
        >>> F.images.posterize(torch.tensor([[[[7, 77, 255]]]], dtype=torch.uint8), 2)
        tensor([[[[  0,  64, 192]]]], dtype=torch.uint8)
    """
    check_images(images)
    mask = (256 - 2 ** (8 - per_image("bits", bits, images, 1, 8))).to(torch.uint8)
    kept = grey_levels(images) & mask
    return like_images(kept if images.dtype == torch.uint8 else kept / 255, images)


def solarize(images: Images, threshold: PerImage) -> Images:
    """Invert every value at or above a threshold.

    Args:
        images: uint8, or floats in [0, 1].
        threshold: In grey levels, from 0 (all is inverted) to 256 (nothing is), for floats too: one
            for all images, or one for each, `[batch]`. A tensor is not checked.

    Returns:
        New images.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or a threshold is not within 0 and 256.

    Example:
        >>> F.images.solarize(torch.tensor([[[[7, 127, 128, 255]]]], dtype=torch.uint8), 128)
        tensor([[[[  7, 127, 127,   0]]]], dtype=torch.uint8)
    """
    check_images(images)
    threshold = per_image("threshold", threshold, images, 0, 256)
    if images.dtype == torch.uint8:
        # To invert is to flip all bits: none for 256, which uint8 does not have.
        flipped = torch.where(threshold > 255, 0, 255).to(torch.uint8)
        start = threshold.ceil().clamp(max=255).to(torch.uint8)
        # 0 from the threshold on, and 1 below it, minus 1: in uint8 all bits, or none. A comparison
        # takes ten times as long.
        bright = (start - torch.minimum(images, start)).clamp_(max=1).sub_(1)
        return like_images(bright.bitwise_and_(flipped).bitwise_xor_(images), images)
    bright = grey_levels(images) >= threshold
    return like_images(torch.where(bright, 1 - images, images), images)
