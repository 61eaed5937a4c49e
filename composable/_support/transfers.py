"""Tensors that are copied to a device without making the host wait for it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor to a device; only a copy to the CPU waits, which is read there at once.

    PyTorch returns a copy from a GPU with `non_blocking=True` before its values have arrived.
    """
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")


def from_numbers(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return numbers as a tensor of the dtype and device of another; `new_tensor` would wait."""
    return send(torch.tensor(numbers, dtype=like.dtype), like.device)
