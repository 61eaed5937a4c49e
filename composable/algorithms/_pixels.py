"""Augmenting images that come normalized from the data loader."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_tuple", "on_pixels", "per_channel"]


def per_channel(instance: Any, *_: Any) -> None:
    """Numbers, one per channel, or None; `mean` and `std` go together."""
    given = {"mean": instance.mean, "std": instance.std}
    if (instance.mean is None) != (instance.std is None):
        raise ValueError(
            f"mean={instance.mean!r} and std={instance.std!r} must be given together: those by "
            "which the images were normalized, or neither."
        )
    for name, value in given.items():
        if value is not None and not (isinstance(value, tuple) and value and _are_numbers(value)):
            raise TypeError(f"{name}={value!r} must be numbers, one per channel.")
    if instance.std is not None and not all(v > 0 for v in instance.std):
        raise ValueError(f"std={instance.std!r} must be above 0.")


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def as_tuple(value: Any) -> Any:
    """A tuple of a list: an algorithm is a value that does not change."""
    return tuple(value) if isinstance(value, list) else value


def on_pixels(
    augment: Callable[[Tensor], Tensor],
    images: Tensor,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> Tensor:
    """Augment the images in [0, 1] that these were before they were normalized."""
    if mean is None or std is None:
        return augment(images)
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise TypeError(
            "mean and std are for images that were normalized, so floats; these are "
            f"{images.dtype if isinstance(images, Tensor) else type(images).__name__}: leave mean "
            "and std out."
        )
    center, scale = (
        torch.tensor(v)[:, None, None].to(images, non_blocking=True) for v in (mean, std)
    )
    return (augment(images * scale + center) - center) / scale
