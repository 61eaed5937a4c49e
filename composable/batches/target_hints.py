"""What to change where a loss refuses the targets of a batch."""

from typing import Any

import torch
from torch import Tensor

from composable._support.notes import add_note

_OF_INDICES = (torch.int64, torch.uint8)


def explain_targets(error: Exception, outputs: Any, targets: Any) -> None:
    """Note on an error of a `loss_fn` what it was called with, and what to change if that is known.

    Args:
        error: The error.
        outputs: The outputs of the model.
        targets: The targets of the batch.

    Example:
        >>> from composable.batches.target_hints import explain_targets
        >>> error = RuntimeError("expected target dtype to be Long or Byte, but got Int")
        >>> explain_targets(error, torch.zeros(4, 3), torch.zeros(4, dtype=torch.int32))
        >>> print(*error.__notes__)
        loss_fn(outputs, targets) got outputs of shape (4, 3) of torch.float32 and targets of
        shape (4,) of torch.int32. Class indices are of torch.int64: return labels.long().
    """
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        called = f"outputs of {_described(outputs)} and targets of {_described(targets)}"
        advice = _advice(outputs, targets) if outputs.ndim > 1 else ""
        add_note(error, f"loss_fn(outputs, targets) got {called}.{advice and f' {advice}.'}")


def _described(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} of {tensor.dtype}"


def _advice(outputs: Tensor, targets: Tensor) -> str:
    """Return what to change in the targets, or nothing where it is not known."""
    count, classes, *positions = outputs.shape
    if targets.shape == outputs.shape:
        integers = outputs.is_floating_point() and not targets.is_floating_point()
        return (
            "Targets like the outputs have their dtype: return labels.float()" if integers else ""
        )
    if classes == 1:
        is_flat = targets.shape == (count, *positions)
        return (
            "With one output, targets have its dimension: return labels[:, None]" if is_flat else ""
        )
    if targets.shape == (count, 1):
        return "Class indices have no dimension for classes: return labels.squeeze(1)"
    return _advice_on_indices(classes, targets) if targets.shape == (count, *positions) else ""


def _advice_on_indices(classes: int, targets: Tensor) -> str:
    if targets.dtype not in _OF_INDICES:
        return "Class indices are of torch.int64: return labels.long()"
    if targets.device.type != "cpu" or not targets.numel():
        return ""  # to read it after an error of a GPU would be another error
    first, last = (int(tensor) for tensor in targets.aminmax())
    if first >= 0 and last < classes:
        return ""
    return (
        f"The labels are from {first} to {last}, and the model has {classes} outputs: number the "
        "classes from 0, and give the model one output for each"
    )
