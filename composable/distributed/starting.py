"""Join the processes that a launcher has started, and leave them."""

import atexit
import os
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from composable.distributed.processes import ProcessError, Processes

__all__ = ["failure_elsewhere", "join_processes", "leave_after_failure", "leave_processes", "local_device"]

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
    # Both: the processes also exchange values that never are on a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(leave_processes)
    return Processes.current()


def local_device() -> torch.device:
    """Return the GPU of this process: that of its number on the machine."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def leave_processes() -> None:
    """Wait for the others, and destroy the group: gloo may abort if one leaves early."""
    if dist.is_initialized():
        try:
            Processes.current().barrier()
        except RuntimeError:  # another process failed
            return
        dist.destroy_process_group()


def leave_after_failure(error: BaseException) -> None:
    """Report an error to the other processes, and close the connections that they wait for."""
    rank = dist.get_rank()
    with suppress(RuntimeError):  # the process that has the store may be gone
        _store().set(_FAILED, f"rank {rank} failed: {type(error).__name__}: {error}"[:2000])
    dist.destroy_process_group()


def failure_elsewhere(error: BaseException) -> ProcessError | None:
    """Return the error for a process whose connections another one has closed."""
    if not isinstance(error, (RuntimeError, ConnectionError)) or isinstance(error, ProcessError):
        return None
    try:
        store = _store()
        if store.check([_FAILED]):
            return ProcessError(store.get(_FAILED).decode())
    except RuntimeError:
        pass
    closed = any(text in str(error) for text in _CLOSED)
    return ProcessError(f"another process ended without a report: {error}") if closed else None


_CLOSED = ("Connection closed by peer", "Connection reset", "Broken pipe", "timed out")


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
