"""Join the processes that a launcher has started, and leave them."""

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from composable._support.warn import warn_user
from composable._version import __version__
from composable.distributed.processes import ProcessError, Processes
from composable.distributed.schedulers import JOB, set_variables

T = TypeVar("T")

_FAILED = "composable/failed"
_WAITING = "composable/waiting"
_READ = "composable/read"
_FREEING = 0.2  # seconds; a busy machine may take some hundredths
_GRACE = 5.0  # seconds; processes that wait for another one stop at about the same time


def join_processes(timeout: float | None = None) -> Processes:
    """Initialize torch.distributed in a process that a launcher has started; return the processes.

    A launcher is `composable launch`, torchrun, Slurm, Open MPI or LSF. Nothing is done without
    one, or if the default group is initialized: it keeps its own timeout.

    Args:
        timeout: After how many seconds without an answer of another process the run ends. Default:
            that of PyTorch, 30 minutes with gloo and 10 with NCCL.

    Raises:
        ValueError: `WORLD_SIZE` is set, and what `torchrun` sets besides it is missing.
        ProcessError: Another process belongs to another job, or runs another version of torch or
            of this library.
    """
    if not dist.is_initialized():
        set_variables()
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes.current()
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set in the environment, but "
            f"{', '.join(missing)} is not; start the script with `composable launch` or torchrun, "
            "or unset WORLD_SIZE."
        )
    options: dict[str, Any] = {}
    if timeout is not None:
        options["timeout"] = timedelta(seconds=timeout)
    if torch.cuda.is_available():
        options["device_id"] = local_device()
        torch.cuda.set_device(local_device())
    dist.init_process_group(_back_ends(), **options)
    atexit.register(leave_processes)
    processes = Processes.current()
    _check_start(processes)
    return processes


def _check_start(processes: Processes) -> None:
    """Check that all processes are of one job, and run the same versions and script."""
    own = {
        "job": os.environ.get(JOB),
        "torch": torch.__version__,
        "composable": __version__,
        "script": _script(),
    }
    (first, host), *others = processes.gather([own, socket.gethostname()])
    for rank, (other, place) in enumerate(others, 1):
        for name in [name for name in own if other[name] != first[name]]:
            text = (
                f"{name} is {first[name]!r} on rank 0 ({host}), and {other[name]!r} on rank {rank} "
                f"({place}): "
            )
            if name == "job":
                raise ProcessError(
                    f"{text}start each job with another master_port; if both are one job, start "
                    "the same command and -n on all machines, or pass the same --job_id."
                )
            if name != "script":
                raise ProcessError(f"{text}install the same version on all machines.")
            if processes.is_main:
                warn_user(f"{text}the machines run other versions of the script; copy one of them.")


def _script() -> str | None:
    """Return the name of the script that runs, and a digest of it."""
    path = Path(sys.argv[0])
    with suppress(OSError):
        return f"{path.name} {sha256(path.read_bytes()).hexdigest()[:8]}"
    return None


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
    """Wait for the others, and destroy the group: gloo may abort if one leaves early.

    A thread of gloo that still frees a tensor of the last message needs Python: where the group
    outlives this call, since a model or an optimizer has it, nothing else waits for the thread, and
    the interpreter would end it by an abort.
    """
    if not dist.is_initialized():
        return
    error = getattr(sys, "last_value", None)
    if error is not None:  # the script ends with it
        _end_with(error)
        return
    with suppress(RuntimeError):  # another process failed
        Processes.current().barrier()
    dist.destroy_process_group()
    time.sleep(_FREEING)


def _abort() -> None:
    """Close all connections, without waiting for what is being sent, as destroying would."""
    dist.distributed_c10d._abort_process_group()


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
            _end_with(error)
            raise
        _abort()
        raise other from error


def _end_with(error: BaseException) -> None:
    """Report an error, and close the connections.

    Rank 0 has the store, unless that is the launcher's: it waits until the others have read, or
    have failed themselves.
    """
    store, own = _store(), dist.get_rank()

    def report() -> None:
        store.set(_FAILED, f"rank {own} failed: {type(error).__name__}: {error}"[:2000])
        store.set(f"{_READ}/{own}", "")

    _ask(report)
    others = range(1, 0 if own else dist.get_world_size())
    _abort()
    if others and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        read = [f"{_READ}/{rank}" for rank in others]
        _ask(lambda: store.wait(read, timedelta(seconds=_GRACE)))


def _ask(function: Callable[[], T]) -> T | None:
    """Return what a function gets from the store, or None if that does not answer.

    The process that has the store may be gone. If its machine is cut off, TCP waits for an answer
    for a quarter of an hour.
    """
    answers: list[T] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(function())

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(2 * _GRACE)
    return answers[0] if answers else None


def _failure_elsewhere(error: BaseException) -> ProcessError | None:
    """Return the error of another process, if it caused this one."""
    if not any(text in str(error) for text in _CLOSED) or isinstance(error, ProcessError):
        return None
    said = _ask(lambda: _reported(error))
    return ProcessError(
        said
        or "another process ended without a report, or its machine is cut off from "
        f"{socket.gethostname()}: {error}"
    )


def _reported(error: BaseException) -> str | None:
    """Return the report in the store; if there is none, write one of those that do not answer."""
    if not _said() and "imed out" in str(error):
        _store().set(_FAILED, _silence(error)[:2000])
    if said := _said():
        _store().set(f"{_READ}/{dist.get_rank()}", "")
    return said


def _said() -> str | None:
    return _store().get(_FAILED).decode() if _store().check([_FAILED]) else None


def _silence(error: BaseException) -> str:
    """Say which processes have not answered: they don't wait for another one themselves."""
    ranks, store = set(range(dist.get_world_size())), _store()
    store.set(f"{_WAITING}/{dist.get_rank()}", "")
    end = time.monotonic() + _GRACE
    while ranks and time.monotonic() < end:
        ranks = {rank for rank in ranks if not store.check([f"{_WAITING}/{rank}"])}
        time.sleep(0.05)
    if not ranks:
        return f"all processes wait, each for another one: {error}"
    silent = ", ".join(map(str, sorted(ranks)))
    return (
        f"rank {silent} did not answer in time: it hangs, or is slower than the others by more "
        f"than the timeout of the process group, which timeout= of the strategy sets ({error})"
    )


_CLOSED = (
    *("Connection closed by peer", "Connection reset", "Broken pipe", "imed out"),
    *("No route to host", "unreachable"),
)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
