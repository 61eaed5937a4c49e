"""Class indices and class probabilities."""

import torch
from torch import Tensor

from ._checks import check_count

__all__ = ["class_probabilities", "count_classes"]


def count_classes(targets: Tensor, num_classes: int | None) -> int:
    """Say how many classes the targets have: dense ones know, indices must be told."""
    if not targets.is_floating_point():
        if num_classes is None:
            raise ValueError(
                f"num_classes is None, but targets are class indices ({targets.dtype}). "
                "Pass the number of classes, for example num_classes=outputs.shape[1]."
            )
        check_count("num_classes", num_classes, 1)
        return num_classes
    if num_classes is not None:
        check_count("num_classes", num_classes)
    if targets.ndim == 0:
        raise ValueError("targets has no dimension of classes: it is a single float.")
    found = targets.shape[min(1, targets.ndim - 1)]
    if num_classes is not None and num_classes != found:
        raise ValueError(
            f"num_classes is {num_classes}, but targets of shape {tuple(targets.shape)} have "
            f"{found} classes in dimension {min(1, targets.ndim - 1)}. Leave num_classes out."
        )
    return found


def class_probabilities(
    targets: Tensor, num_classes: int, *, on: float = 1.0, off: float = 0.0
) -> Tensor:
    """Turn indices [N, ...] into [N, C, ...]: `on` at the class, `off` at every other one."""
    dim = min(1, targets.ndim)
    shape = (*targets.shape[:dim], num_classes, *targets.shape[dim:])
    table = torch.full(shape, off, device=targets.device, dtype=torch.get_default_dtype())
    # scatter refuses an index out of range on its own: no look at the values, no wait for a
    # GPU.
    return table.scatter(dim, targets.long().unsqueeze(dim), on)
