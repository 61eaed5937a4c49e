"""Join the processes that a launcher has started, and leave them."""

import atexit
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
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

REPORT = "default_pg/0//composable/failed"
"""Where the first failure of the processes is reported in the store of their launcher."""
_FAILED = "composable/failed"  # the same, in the store of the default group
_WAITING = "composable/waiting"
_READ = "composable/read"
_FREEING = 0.2  # seconds; a busy machine may take some hundredths
_GRACE = 5.0  # seconds; processes that wait for another one stop at about the same time

_hosts: dict[int, str] = {}  # of the ranks, once they have joined
_phase: list[str | Callable[[], str]] = ["the script"]


def join_processes(timeout: float | None = None) -> Processes:
    """Initialize torch.distributed in a process that a launcher has started; return the processes.

    A launcher is `composable launch`, torchrun, Slurm, Open MPI or LSF. Nothing is done without
    one, or if the default group is initialized: it keeps its timeout.

    Args:
        timeout: After how many seconds without an answer of another process the run ends. Default:
            PyTorch's, 30 minutes with gloo and 10 with NCCL.

    Raises:
        ValueError: `WORLD_SIZE` is set, and what `torchrun` sets besides it is missing.
        ProcessError: Another process did not join in time, belongs to another job, or runs another
            version of torch or of this library.
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
    try:
        dist.init_process_group(_back_ends(), **options)
    except RuntimeError as error:
        late = re.search(r"keys: [^\s,]*/(\d+)", str(error))  # gloo waits for each rank in turn
        absent = _lost([int(late[1])] if late else [], "did not join in time", error)
        raise ProcessError(_in_vain(int(os.environ["RANK"]), absent)) from error
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
    (first, host), *others = told = processes.gather([own, socket.gethostname()])
    _hosts.update((rank, place) for rank, (_, place) in enumerate(told))
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
    """Return the GPU of this process: its number is the process's on the machine."""
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
def in_phase(phase: str | Callable[[], str]) -> Iterator[None]:
    """Name the phase of the block in the error of a process that waits in vain.

    All processes of a run are in the same phase, so the one that does not answer was in it, too.
    """
    before, _phase[0] = _phase[0], phase
    yield
    _phase[0] = before  # not after an error, which is reported later


@contextmanager
def failing_together(agreed: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """End a block on every process if it fails on one of them.

    The error is reported to the others, and the connections that they wait for are closed. The
    processes exchange nothing afterwards, unless all raise the same error: one with the attribute
    `raised_by_all`.

    Args:
        agreed: Returns whether the block ends with the same error on every process.

    Raises:
        ProcessError: Another process failed.
    """
    try:
        yield
    except BaseException as error:
        agrees = getattr(error, "raised_by_all", False) or agreed()
        if agrees or not Processes.current().several:
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
        text = f"rank {own} failed: {type(error).__name__}: {error}"[:1800]
        store.set(_FAILED, f"{text} ({_here()})")
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
    """Return the error of another process, if it caused this one.

    Unless another process reported an error of its code, this one writes the stacks of its threads.
    """
    cause = error.__cause__ if isinstance(error, ProcessError) else error
    if not any(text in str(cause) for text in _CLOSED):
        return None
    own, size = dist.get_rank(), dist.get_world_size()
    said = _ask(lambda: _reported(cause, own, size))
    if said is None:
        away = (rank for rank in range(size) if _hosts.get(rank) != socket.gethostname())
        said = _lost(away, "ended without a report, or its machine is cut off", cause)
    if " failed: " not in said:
        import faulthandler  # on use

        said = _in_vain(own, said)
        with suppress(AttributeError, OSError, RuntimeError, ValueError):  # no file: a notebook's
            faulthandler.dump_traceback()
    return ProcessError(said)


def _reported(error: BaseException | None, own: int, size: int) -> str:
    """Return the report in the store; if there is none, write one of those that do not answer.

    They don't wait for another process themselves.
    """
    store, silent = _store(), set(range(size))
    store.set(f"{_WAITING}/{own}", "")
    end = time.monotonic() + _GRACE
    while silent and time.monotonic() < end and not store.check([_FAILED]):
        silent = {rank for rank in silent if not store.check([f"{_WAITING}/{rank}"])}
        time.sleep(0.05)
    if not store.check([_FAILED]):
        what = "did not answer in time" if silent else "wait, each for another one"
        store.set(_FAILED, _lost(silent or range(size), what, error)[:2000])
    store.set(f"{_READ}/{own}", "")
    return str(store.get(_FAILED).decode())


def rank_and_host(rank: int) -> str:
    """Return a rank with its host."""
    return f"rank {rank} on {_hosts.get(rank, 'another host')}"


def _lost(ranks: Iterable[int], what: str, error: BaseException | None) -> str:
    names = [rank_and_host(rank) for rank in ranks]
    line = str(error).partition("\n")[0].partition(". This is typically ")[0]  # of gloo's advice
    return (
        f"{', '.join(names) or 'another process'} {what}. Look at its log and stacks and at the "
        "network, and start all processes again; if it is only slower than the others, raise "
        f"timeout= of the strategy ({re.sub(r'^.*[.]cc:[0-9]+[]] ', '', line)})"
    )


def _in_vain(rank: int, why: str) -> str:
    return f"rank {rank} {_here()}, waited in vain: {why}"


def _here() -> str:
    phase = _phase[0]
    return f"on {socket.gethostname()}, in {phase if isinstance(phase, str) else phase()}"


_CLOSED = (
    *("Connection closed by peer", "Connection reset", "Broken pipe", "imed out"),
    *("No route to host", "unreachable"),
)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
