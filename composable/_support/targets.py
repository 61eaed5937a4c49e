"""Targets as class indices and as class probabilities."""

from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_count

IGNORE_INDEX = -100
"""The target of a position without a label, which the losses of PyTorch ignore by default."""


def count_classes(targets: Tensor, num_classes: int | None, class_dim: int = 1) -> int:
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
    dim = dim_of_classes(targets, class_dim)
    found = targets.shape[dim]
    if num_classes is not None and num_classes != found:
        raise ValueError(
            f"num_classes={num_classes} must match the {found} classes of targets, of shape "
            f"{tuple(targets.shape)}, in dimension {dim}; omit num_classes."
        )
    return found


def check_class_dim(name: str, value: Any) -> None:
    """Raise a ValueError unless classes are in dimension 1, or in the last one."""
    if type(value) is not int or value not in (1, -1):
        raise ValueError(
            f"{name}={value!r} must be 1, for [batch, classes, ...], or -1, for "
            "[batch, ..., classes]."
        )


def check_several_classes(name: str, logits: Tensor, class_dim: int) -> None:
    """Raise a ValueError for the logits of a single class, whose probability is always 1."""
    if logits.shape[class_dim] == 1:
        raise ValueError(
            f"{name} has one class in dimension {class_dim} of shape {tuple(logits.shape)}, whose "
            "probability is always 1. Use logits of two classes or more; for a sigmoid's, pass "
            f"torch.cat([torch.zeros_like(z), z], {class_dim})."
        )


def dim_of_classes(probabilities: Tensor, class_dim: int = 1) -> int:
    """Return the dimension of the classes; a single example has no dimension before it."""
    return min(class_dim, probabilities.ndim - 1)


def class_probabilities(
    targets: Tensor,
    num_classes: int,
    *,
    on: float = 1.0,
    off: float = 0.0,
    class_dim: int = 1,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Convert indices [N, ...] to [N, C, ...]: `on` for the class, `off` for all others.

    The entries of an ignored position are 0.
    """
    dim = class_dim if class_dim < 0 else min(class_dim, targets.ndim)
    indices = targets.long().unsqueeze(dim)
    labeled = indices != ignore_index
    share = labeled.to(torch.get_default_dtype())
    shape = list(indices.shape)
    shape[dim] = num_classes
    # scatter itself raises an error for an index out of range, without a synchronization here.
    return (share * off).expand(shape).scatter(dim, torch.where(labeled, indices, 0), share * on)
