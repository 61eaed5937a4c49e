"""Augmenting images that come normalized from the data loader."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

__all__ = ["as_tuple", "on_pixels", "per_channel"]


def per_channel(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Numbers, one per channel, or None; `mean` and `std` go together."""
    if (instance.mean is None) != (instance.std is None):
        raise ValueError(
            f"mean={instance.mean!r} and std={instance.std!r} must be given together: those by "
            "which the images were normalized, or neither."
        )
    if value is None:
        return
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in value) or not value:
        raise TypeError(f"{attribute.name}={value!r} must be numbers, one per channel.")
    if attribute.name == "std" and not all(v > 0 for v in value):
        raise ValueError(f"std={value!r} must be above 0.")


def as_tuple(value: Any) -> Any:
    """A tuple of what can be gone through: an algorithm is a value that does not change."""
    return tuple(value) if isinstance(value, (list, Tensor)) else value


def on_pixels(
    augment: Callable[[Tensor], Tensor],
    images: Tensor,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> Tensor:
    """Augment the images in [0, 1] that these were before they were normalized."""
    if mean is None or std is None:
        return augment(images)
    shape, like = (-1, 1, 1), {"dtype": images.dtype, "device": images.device}
    center, scale = (torch.tensor(v, **like).reshape(shape) for v in (mean, std))
    return (augment(images * scale + center) - center) / scale
