"""Run a function in several processes that are connected by gloo, each with a time limit.

The processes of `run` stay for the next function that as many run, and so do their connections:
starting them takes longer than most functions. Those of `attempt`, which may fail, are new ones.
"""

import atexit
import contextlib
import inspect
import multiprocessing
import os
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

SECONDS = 150
"""The time limit of all processes together; one that waits for another must fail, not hang."""

forkserver = multiprocessing.get_context("forkserver")
# What functions and a first step import, or a first store: seconds of each process without it.
forkserver.set_forkserver_preload(
    [
        "tests.distributed.test_parallel_runs",
        "composable.trainer.build",
        "composable.trainer.loop",
        "composable.trainer.records",
        "composable.trainer.summary",
        "composable.engines.build",
        "composable.engines.exact",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "s3fs",
    ]
)


class Failed:
    """What a process raised."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.message = str(error)
        self.text = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}"


def run(function: Callable[..., Any], size: int, *args: Any, seconds: float = SECONDS) -> list[Any]:
    """Call a function in each of several processes, and return the results by rank.

    Args:
        function: A function of a module that the processes import.
        size: Number of processes.
        args: Its arguments.
        seconds: After how long the processes are killed, and the test fails.
    """
    group = _groups.pop(size, None) or _Group(size)
    results = group.call(function, args, seconds)
    for rank, one in enumerate(results):
        assert not isinstance(one, Failed), f"rank {rank} of {size}:\n{one.text}"
    _groups[size] = group
    return results


def attempt(
    function: Callable[..., Any], size: int, *args: Any, seconds: float = SECONDS
) -> list[Any]:
    """Call a function like `run` in new processes; return `Failed` for one that raised or ended."""
    group = _Group(size)
    try:
        return group.call(function, args, seconds)
    finally:
        group.end()


def error_of(function: Callable[..., Any], *args: Any) -> str:
    """Call a function that fails in each process, but leaves the group, and return the error."""
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{function} has not failed")


def connect() -> None:
    """Connect the processes of `run` as `torchrun` and a script would, unless they are."""
    import torch.distributed as dist

    # The other variables that `torchrun` sets, by which Lightning recognizes it.
    size = os.environ["WORLD_SIZE"]
    os.environ.update(LOCAL_WORLD_SIZE=size, GROUP_RANK="0", TORCHELASTIC_RUN_ID="test")
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def by_options(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function whose options are the last of the arguments, as those of `run` are."""
    return function(*args[:-1], **args[-1])


class _Group:
    """Processes that call functions."""

    def __init__(self, size: int) -> None:
        pipes = [forkserver.Pipe() for _ in range(size)]
        port = free_port()
        self.pipes = [own for own, _ in pipes]
        self.processes = [
            forkserver.Process(target=_serve, args=(other, rank, size, port))
            for rank, (_, other) in enumerate(pipes)
        ]
        for process, (_, other) in zip(self.processes, pipes, strict=True):
            process.start()
            other.close()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
        """Call a function in each process, and return the results; kill them all if one fails."""
        size = len(self.pipes)
        results: list[Any] = [None] * size
        open_, end = set(range(size)), time.monotonic() + seconds
        try:
            for pipe in self.pipes:
                with contextlib.suppress(BrokenPipeError):  # the result is then an EOFError
                    pipe.send((function, args))
            while open_:
                ready = wait([self.pipes[rank] for rank in open_], max(end - time.monotonic(), 0))
                assert ready, f"after {seconds} s, ranks {sorted(open_)} of {size} have not ended"
                for rank in [rank for rank in open_ if self.pipes[rank] in ready]:
                    open_.remove(rank)
                    try:
                        results[rank] = self.pipes[rank].recv()
                    except (EOFError, ConnectionResetError):  # it was killed, or exited
                        self.processes[rank].join(10)
                        results[rank] = Failed(SystemExit(self.processes[rank].exitcode))
        finally:
            if open_ or any(isinstance(one, Failed) for one in results):
                self.end()
        return results

    def end(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()


_groups: dict[int, _Group] = {}
"""The processes that are free, by their number."""


@atexit.register
def _end_groups() -> None:
    for group in _groups.values():
        group.end()


def is_alive(pid: int) -> bool:
    """Return whether a process runs: it has not ended, reaped or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self").exists():  # not Linux, which may lack `ps`
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True).stdout.strip()[:1] not in (b"", b"Z")
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], Any], seconds: float = 90) -> None:
    """Wait until a condition holds, and fail if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{inspect.getsource(condition)} after {seconds} s"
        time.sleep(0.02)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start_workers_as_usual() -> None:
    """Let the loaders of this process start their workers as those of a new interpreter do.

    A process of a fork server starts one of its own, which imports torch for each worker.
    """
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)


def _serve(pipe: Any, rank: int, size: int, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    import torch

    start_workers_as_usual()
    torch.set_num_threads(1)
    seed = torch.initial_seed()  # of a new process
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        torch.manual_seed(seed)
        try:
            result: Any = function(*args)
        except BaseException as error:
            result = Failed(error)
        pipe.send(result)
