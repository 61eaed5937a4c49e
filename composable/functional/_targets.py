"""Targets as class indices and as class probabilities."""

import torch
from torch import Tensor

from ._checks import check_count

__all__ = ["class_probabilities", "count_classes"]


def count_classes(targets: Tensor, num_classes: int | None) -> int:
    """Return the number of classes: `num_classes` for indices, a size for probabilities."""
    if not targets.is_floating_point():
        if num_classes is None:
            raise ValueError(
                f"num_classes=None must be an integer for targets of class indices "
                f"({targets.dtype}); pass num_classes=outputs.shape[1] or the like."
            )
        check_count("num_classes", num_classes, 1)
        return num_classes
    if num_classes is not None:
        check_count("num_classes", num_classes)
    if targets.ndim == 0:
        raise ValueError("targets must have a dimension of classes, not shape ().")
    found = targets.shape[min(1, targets.ndim - 1)]
    if num_classes is not None and num_classes != found:
        raise ValueError(
            f"num_classes={num_classes} must match the {found} classes of targets, of shape "
            f"{tuple(targets.shape)}, in dimension {min(1, targets.ndim - 1)}; omit num_classes."
        )
    return found


def class_probabilities(
    targets: Tensor, num_classes: int, *, on: float = 1.0, off: float = 0.0
) -> Tensor:
    """Convert indices [N, ...] to [N, C, ...]: `on` for the class, `off` for all others."""
    dim = min(1, targets.ndim)
    shape = (*targets.shape[:dim], num_classes, *targets.shape[dim:])
    table = torch.full(shape, off, device=targets.device, dtype=torch.get_default_dtype())
    # scatter itself raises an error for an index out of range, without a synchronization here.
    return table.scatter(dim, targets.long().unsqueeze(dim), on)
