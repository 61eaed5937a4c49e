"""Operations that interpolate between an image and a plainer version of it, or extrapolate.

Each is `plain + factor * (image - plain)`: factor 0 is the plain image, 1 the image itself, and
more than 1 goes beyond it. The plain images have whole grey levels, as they have in Pillow.
"""

import torch
from torch import Tensor

from composable._support.pixels import (
    Images,
    PerImage,
    check_images,
    like_images,
    per_image,
    round_,
    values_of,
    white_of,
)


def brightness(images: Images, factor: PerImage) -> Images:
    """Multiply every value.

    Args:
        images: uint8, or floats in [0, 1].
        factor: 0 or more: 0 is black, 1 changes nothing. One for all images, or one for each,
            `[batch]`. A tensor is not checked.

    Returns:
        New images, clipped at black and white.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is negative.

    Example:
        >>> F.images.brightness(torch.tensor([[[[0.2, 0.4, 0.8]]]]), 2.0)
        tensor([[[[0.4000, 0.8000, 1.0000]]]])
    """
    check_images(images)
    factor = per_image("factor", factor, images, 0)
    return like_images(_clip(values_of(images).mul_(factor), images), images)


def contrast(images: Images, factor: PerImage) -> Images:
    """Scale the distance of every value from the mean grey level of its image.

    Args:
        images: uint8, or floats in [0, 1], of 1 or 3 channels.
        factor: 0 or more: 0 is grey all over, 1 changes nothing. One for all images, or one for
            each, `[batch]`. A tensor is not checked.

    Returns:
        New images, clipped at black and white. The gradient takes the mean as a constant.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is negative.

    Example:
        >>> F.images.contrast(torch.tensor([[[[0.4, 0.6]]]]), 2.0)
        tensor([[[[0.2980, 0.6980]]]])
    """
    check_images(images)
    factor = per_image("factor", factor, images, 0)
    values = values_of(images)
    grey = _grey("contrast", values, images)
    # Sums of whole numbers: exact for rows of up to 65 thousand pixels, and for any number of rows.
    total, pixels = grey.sum(3, keepdim=True).long().sum(2, keepdim=True), grey.shape[2:].numel()
    mean = ((2 * total + pixels) // max(2 * pixels, 1)).to(values.dtype)
    # On a CPU lerp takes three times as long where two of its arguments are broadcast.
    plain = (mean * (white_of(images) / 255)).expand_as(grey).contiguous()
    return like_images(_blend(plain, values, factor, images), images)


def color(images: Images, factor: PerImage) -> Images:
    """Scale the saturation of the colours.

    Args:
        images: uint8, or floats in [0, 1], of 1 channel (which has no colour to change) or 3.
        factor: 0 or more: 0 is grey, 1 changes nothing. One for all images, or one for each,
            `[batch]`. A tensor is not checked.

    Returns:
        New images, clipped at black and white. The gradient takes the grey as a constant.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is negative.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
        >>> F.images.color(red, 0.0).flatten()
        tensor([0.2980, 0.2980, 0.2980])
    """
    check_images(images)
    factor = per_image("factor", factor, images, 0)
    values = values_of(images)
    grey = _grey("color", values, images).mul_(white_of(images) / 255)
    if images.shape[1] == 1:
        return images.clone()
    return like_images(_blend(grey, values, factor, images), images)


def sharpness(images: Images, factor: PerImage) -> Images:
    """Sharpen or blur by a weighted mean of 3 x 3 pixels. The outermost pixels stay unchanged.

    Args:
        images: uint8, or floats in [0, 1].
        factor: 0 or more: 0 is blurred, 1 changes nothing, and more sharpens. One for all images,
            or one for each, `[batch]`. A tensor is not checked.

    Returns:
        New images, clipped at black and white. The gradient takes the blurred image as a constant.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of the wrong shape, or the factor is negative.

    Example:
        >>> dot = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
        >>> dot[..., 1, 1] = 130
        >>> F.images.sharpness(dot, 0.0)[0, 0, 1]
        tensor([ 0, 50,  0], dtype=torch.uint8)
    """
    check_images(images)
    factor = per_image("factor", factor, images, 0)
    inner = values_of(images[..., 1:-1, 1:-1])
    # The sums of uint8 fit into int16, which are added three times as fast as floats.
    terms = images.to(torch.int16 if images.dtype == torch.uint8 else inner.dtype)
    rows = (terms[..., :-2] + terms[..., 1:-1]).add_(terms[..., 2:])
    box = (rows[..., :-2, :] + rows[..., 1:-1, :]).add_(rows[..., 2:, :])
    box = box.add_(terms[..., 1:-1, 1:-1], alpha=4).to(inner.dtype)
    blurred = round_(box.mul_(1 / 13), images)
    result = images.clone()
    result[..., 1:-1, 1:-1] = _blend(blurred, inner, factor, images)
    return result


def _grey(name: str, values: Tensor, images: Tensor) -> Tensor:
    """Return the grey levels of images as whole numbers, `[batch, 1, height, width]`."""
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must have 1 or 3 channels for {name}, not {images.shape[1]}; skip it, such "
            'as by augmentations="safe".'
        )
    if images.shape[1] == 1:
        grey = values.clone()
    else:
        # In 65536ths, as Pillow has them: products of a level and a weight are exact in float32.
        grey = values[:, :1] * (19595 / 65536)
        grey.add_(values[:, 1:2], alpha=38470 / 65536).add_(values[:, 2:], alpha=7471 / 65536)
    return grey.mul_(255 / white_of(images)).add_(0.5).floor_()


def _blend(plain: Tensor, values: Tensor, factor: Tensor, images: Tensor) -> Tensor:
    """Blend in place: `plain + factor * (values - plain)`, exactly `values` for the factor 1."""
    return _clip(values.lerp_(plain, 1 - factor), images)


def _clip(values: Tensor, images: Tensor) -> Tensor:
    return values.clamp_(0, white_of(images))
