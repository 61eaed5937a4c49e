"""Devices and the dtypes to compute in; copies and reads for which the host does not wait."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor to a device; only a copy to the CPU waits, which is read there at once.

    PyTorch returns a copy from a GPU with `non_blocking=True` before its values have arrived.
    """
    if tensor.device == device and dtype in (None, tensor.dtype):
        return tensor
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")


def from_numbers(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return numbers as a tensor of the dtype and device of another; `new_tensor` would wait."""
    return send(torch.tensor(numbers, dtype=like.dtype), like.device)


def generator_device(generator: torch.Generator | None) -> torch.device:
    """Return the device of a generator, the CPU for None."""
    return torch.device("cpu") if generator is None else generator.device


def memory_statistics(device: torch.device) -> Mapping[str, Any] | None:
    """Return the statistics of a device's allocator, by PyTorch's names; None if it has none."""
    read = getattr(torch.get_device_module(device), "memory_stats", None)
    return None if read is None else read(device)


def numbers(tensor: Tensor, of: Callable[[Tensor], Tensor] = Tensor.detach) -> Any:
    """Return values, or those `of` them, if that needs no synchronization, otherwise None.

    Draws on the CPU are read without synchronization, even if the batch is on a GPU. In a compiled
    graph, under `vmap` and in a mode such as `FakeTensorMode` there are no values to read.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or wrapped(tensor):
        return None
    if type(tensor) is not Tensor or torch._C._len_torch_dispatch_stack():
        return None
    return read_draw(of(tensor))


def read_draw(draw: Tensor) -> Any:
    """Return the values of a draw on the CPU, also in a mode; `NoSync` allows it."""
    return draw.tolist()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float64 for float64 and complex128, otherwise float32."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the dtype of autocast, or None if it is off or, as on meta, not supported."""
    compiles = torch.compiler.is_compiling()  # PyTorch 2.8 can't trace whether it is available
    available = device != "meta" if compiles else torch.amp.is_autocast_available(device)
    if not available or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)
