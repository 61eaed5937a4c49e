"""Shared parts of the operations on images: checks of arguments and conversions of dtype.

An operation computes in floats: from 0 to 255 where the images are uint8, and from 0 to 1 where
they are floats.
"""

from math import inf
from typing import Any, TypeAlias

import torch
from jaxtyping import Shaped
from torch import Tensor

from composable._support.checks import check_range, check_tensor
from composable._support.devices import compute_dtype, send
from composable._support.spatial import laid_out_like
from composable._support.warn import ImageRangeWarning, warn_user

Images: TypeAlias = Shaped[Tensor, "batch channels height width"]
PerImage: TypeAlias = Shaped[Tensor, " batch"] | float
"""A strength: one for all images, or one for each."""
GRAIN = 1 / 32
"""Part of a grey level: more than what float32 loses, and too little to be seen. It is added before
truncation, so that a value of 99.9999 becomes 100 where exact arithmetic gives 100."""


def check_images(images: Any) -> None:
    """Raise an error unless the value is a batch of images, uint8 or floating-point."""
    check_tensor("images", images)
    if not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise TypeError(
            f"images must be uint8, or floats in [0, 1], not {images.dtype}; convert it first, "
            "such as images.to(torch.uint8) for values from 0 to 255."
        )
    if images.ndim != 4:
        raise ValueError(
            "images must have shape [batch, channels, height, width], not "
            f"{tuple(images.shape)}; pass images[None] for a single image."
        )


_LOWEST, _HIGHEST = -0.5, 1.5
"""Interpolation may exceed [0, 1] a little, and images that are normalized exceed it by more."""


def check_pixels(images: Tensor, advice: str, *, wait: bool = False) -> None:
    """Warn if the first image is clearly not in [0, 1], to which operations clip.

    Args:
        images: A batch of images.
        advice: What to do with normalized images.
        wait: Read the image even if it is not on the CPU, which waits for the device.
    """
    if not (images.is_floating_point() and images.numel() and _may_read(images, wait)):
        return
    low, high = (bound.item() for bound in images[:1].detach().aminmax())
    if low < _LOWEST or high > _HIGHEST:
        # Without the values: Python shows a warning of the same text once.
        warn_user(
            "images are not in [0, 1], so most of their values would be clipped to 0 or 1; "
            f"{advice}.",
            ImageRangeWarning,
        )


def _may_read(images: Tensor, wait: bool) -> bool:
    """Return whether values may be read: not within `torch.compile`, `vmap` or a mode."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(images)
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or images.is_meta
        or (images.device.type != "cpu" and not wait)
    )


def per_image(
    name: str, value: Any, images: Tensor, low: float = -inf, high: float = inf
) -> Tensor:
    """Return a strength for each image, `[batch, 1, 1, 1]`, from a tensor or from one number."""
    dtype = compute_dtype(images.dtype) if images.is_floating_point() else torch.float32
    if not isinstance(value, Tensor):
        finite = "()" if high == inf and low == -inf else "[)" if high == inf else "[]"
        check_range(name, value, low, high, ends=finite)
        return torch.full((1, 1, 1, 1), float(value), dtype=dtype, device=images.device)
    if value.shape != images.shape[:1]:
        raise ValueError(
            f"{name} must be a number, or have shape ({len(images)},), one number per image, not "
            f"{tuple(value.shape)}."
        )
    return send(value, images.device, dtype).reshape(-1, 1, 1, 1)


def white_of(images: Tensor) -> int:
    """Return the value of white."""
    return 255 if images.dtype == torch.uint8 else 1


def values_of(images: Tensor) -> Tensor:
    """Copy the images to the dtype of the computation; the copy may be modified in place."""
    dtype = compute_dtype(images.dtype) if images.is_floating_point() else torch.float32
    return images.to(dtype, copy=True)


def grey_levels(images: Tensor) -> Tensor:
    """Convert images to uint8; floats are rounded to the nearest of 256 grey levels."""
    if images.dtype == torch.uint8:
        return images
    return values_of(images.detach()).mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def round_(values: Tensor, images: Tensor) -> Tensor:
    """Round values on the scale of the images to whole grey levels, in place."""
    if images.dtype == torch.uint8:
        return values.round_()
    return values.mul_(255).round_().div_(255)


def like_images(values: Tensor, images: Tensor) -> Tensor:
    """Convert a result to the dtype and memory layout of the images; uint8 truncates."""
    return laid_out_like(values.to(images.dtype), images)
