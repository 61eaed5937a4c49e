"""Join the processes that a launcher has started, and leave them."""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from composable.distributed.processes import ProcessError, Processes

__all__ = ["failing_together", "form_group", "join_processes", "leave_processes", "local_device"]

_FAILED = "composable/failed"


def join_processes() -> Processes:
    """Initialize torch.distributed in a process that a launcher has started; return the processes.

    Nothing is done without a launcher, or if the default group is initialized.

    Raises:
        ValueError: `WORLD_SIZE` is set, and what `torchrun` sets besides it is missing.
    """
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes.current()
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set in the environment, but "
            f"{', '.join(missing)} is not; start the script with `composable launch` or torchrun, "
            "or unset WORLD_SIZE."
        )
    if torch.cuda.is_available():
        torch.cuda.set_device(local_device())
    dist.init_process_group(_back_ends())
    atexit.register(leave_processes)
    return Processes.current()


def form_group() -> None:
    """Initialize torch.distributed with this process alone, if the default group is not there."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in the list of exports
        dist.init_process_group(_back_ends(), store=store, rank=0, world_size=1)
        atexit.register(leave_processes)


def _back_ends() -> str:
    # Both: the processes also exchange values that never are on a GPU.
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def local_device() -> torch.device:
    """Return the GPU of this process: that of its number on the machine."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def leave_processes() -> None:
    """Wait for the others, and destroy the group: gloo may abort if one leaves early."""
    if not dist.is_initialized():
        return
    error = getattr(sys, "last_value", None)
    if error is not None:  # the script ends with it
        _report(error)
    else:
        with suppress(RuntimeError):  # another process failed
            Processes.current().barrier()
    dist.destroy_process_group()


@contextmanager
def failing_together(agreed: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """End a block on every process if it fails on one of them.

    The error is reported to the others, and the connections that they wait for are closed. The
    processes exchange nothing afterwards.

    Args:
        agreed: Returns whether the block ends with the same error on every process.

    Raises:
        ProcessError: Another process failed.
    """
    try:
        yield
    except BaseException as error:
        if not Processes.current().several or agreed():
            raise
        other = _failure_elsewhere(error)
        if other is None:
            _report(error)
        dist.destroy_process_group()
        if other is None:
            raise
        raise other from error


def _report(error: BaseException) -> None:
    text = f"rank {dist.get_rank()} failed: {type(error).__name__}: {error}"
    with suppress(RuntimeError):  # the process that has the store may be gone
        _store().set(_FAILED, text[:2000])


def _failure_elsewhere(error: BaseException) -> ProcessError | None:
    """Return the error of another process, if it caused this one."""
    if not any(text in str(error) for text in _CLOSED) or isinstance(error, ProcessError):
        return None
    with suppress(RuntimeError):
        if _store().check([_FAILED]):
            return ProcessError(_store().get(_FAILED).decode())
    return ProcessError(f"another process ended without a report: {error}")


_CLOSED = ("Connection closed by peer", "Connection reset", "Broken pipe", "timed out")


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
