"""Detect operations that synchronize the host with the device."""

import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from composable._support.devices import read_draw

__all__ = ["HostSyncError", "NoSync"]

_READ = inspect.unwrap(read_draw).__code__
# Operations that depend on values, not only on shapes: on a GPU each waits for all queued work.
_WAITING = {
    "_local_scalar_dense",  # item(), float(), bool(), if
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
# On the CPU these dispatch no operation, so only the function calls can be intercepted.
_READS = {
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__int__,
    Tensor.cpu,
    Tensor.item,
    Tensor.numpy,
    Tensor.tolist,
}
# They copy host data to a device, and wait for the copy.
_BUILDS = {torch.as_tensor, torch.asarray, torch.tensor, Tensor.new_tensor}
_INDEXES = {Tensor.__getitem__, Tensor.__setitem__}


class HostSyncError(AssertionError):
    """An operation would synchronize the host with the device."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} would make the host wait for the device")


class NoSync(ExitStack):
    """Raise at operations that synchronize, such as `.item()`, `if tensor:` or `nonzero()`.

    The check works on the CPU, so it requires no GPU. It does not distinguish tensors of a batch
    from small tensors that belong on the CPU: `tolist()` of a draw on the CPU raises too. Compiled
    functions and `torch.func.vmap` cannot be used inside the block.

    A copy between the host and a device waits without `non_blocking=True`, also from pinned memory.
    It raises between tensors of two devices; with all of them on the CPU, there is nothing to see.
    So move the batch to the device "meta", which stands for a GPU, where the functions of the block
    need no values. New tensors from numbers of the host raise on the CPU too, where they get the
    device of another tensor: `new_tensor([1, 2])`, and `torch.tensor([1, 2], device=x.device)`
    unless the device is written as "cpu". `torch.tensor([1, 2]).to(x.device, non_blocking=True)`
    does not wait.

    Raises:
        HostSyncError: An operation in the block would synchronize.

    Example:
        >>> from composable.testing import NoSync
        >>> with NoSync():
        ...     clipped = torch.randn(3).clamp(max=1.0)
        >>> with NoSync():
        ...     clipped.max().item()
        Traceback (most recent call last):
            ...
        composable.testing.no_sync.HostSyncError: item would make the host wait for the device
    """

    def __enter__(self) -> "NoSync":
        self.enter_context(_NoWaiting())  # type: ignore[no-untyped-call]
        self.enter_context(_NoReading())
        return self


class _NoReading(TorchFunctionMode):
    """Raises when a tensor is converted to numbers.

    The draws that the library's methods read are exempt: they are always on the CPU.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in _READS and sys._getframe(1).f_code is not _READ:
            raise HostSyncError(func.__name__)
        elsewhere = func is Tensor.new_tensor or given.get("device") not in (None, "cpu")
        if func in _BUILDS and elsewhere and not any(isinstance(one, Tensor) for one in args[-1:]):
            raise HostSyncError(f"{func.__name__} of numbers on the device of another tensor")
        if func in _INDEXES:
            index = args[1] if isinstance(args[1], tuple) else args[1:2]
            if any(isinstance(one, list) for one in index):
                raise HostSyncError("indexing by a list")
        return func(*args, **given)


class _NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises at results whose shape depends on values, and at blocking copies between devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        given = kwargs or {}
        sized = name == "repeat_interleave" and given.get("output_size") is not None
        if name in _WAITING and not sized:
            raise HostSyncError(name)
        result = func(*args, **given)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [one for one in args[1] if one is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                raise HostSyncError("indexing by a mask")
            if any(_crosses(index, result) for index in indices):
                raise HostSyncError("indexing by a tensor on the CPU")
        copied = {"_to_copy": args[:1], "copy_": args[1:2]}.get(name, ())
        if copied and _crosses(copied[0], result) and not given.get("non_blocking", any(args[2:])):
            raise HostSyncError(f"a copy to {result.device} without non_blocking=True")
        return result


def _crosses(source: Tensor, result: Tensor) -> bool:
    """Return whether one of two tensors is on the CPU and the other is not."""
    return (source.device.type == "cpu") != (result.device.type == "cpu")
