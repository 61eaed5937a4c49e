"""Run a function in several processes that are connected by gloo, each with a time limit."""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

SECONDS = 150
"""The time limit of all processes together; one that waits for another must fail, not hang."""

_context = multiprocessing.get_context("forkserver")
# What a first step imports: a second of each process that is not forked with it.
_context.set_forkserver_preload(
    ["tests.support.parallel_runs", "torch._dynamo", "torch.distributed.fsdp"]
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
        function: A function of a module, not of a test file: the processes import it.
        size: Number of processes.
        args: Its arguments.
        seconds: After how long the processes are killed, and the test fails.
    """
    results = attempt(function, size, *args, seconds=seconds)
    for rank, one in enumerate(results):
        assert not isinstance(one, Failed), f"rank {rank} of {size}:\n{one.text}"
    return results


def attempt(
    function: Callable[..., Any], size: int, *args: Any, seconds: float = SECONDS
) -> list[Any]:
    """Call a function like `run`, and return `Failed` for a process that raised."""
    pipes = [_context.Pipe(duplex=False) for _ in range(size)]
    port = free_port()
    processes = [
        _context.Process(target=_work, args=(sender, rank, size, port, function, args))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    receivers = [receiver for receiver, _ in pipes]
    results: list[Any] = [None] * size
    open_ = set(range(size))
    end = time.monotonic() + seconds
    try:
        while open_:
            ready = wait([receivers[rank] for rank in open_], max(end - time.monotonic(), 0))
            assert ready, f"after {seconds} s, ranks {sorted(open_)} of {size} have not ended"
            for rank in [rank for rank in open_ if receivers[rank] in ready]:
                open_.remove(rank)
                try:
                    results[rank] = receivers[rank].recv()
                except EOFError:  # it was killed, or exited
                    processes[rank].join(10)
                    results[rank] = Failed(SystemExit(processes[rank].exitcode))
    finally:
        for process in processes:
            process.join(max(end - time.monotonic(), 0) if not open_ else 0)
            process.kill()
            process.join()
    return results


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _work(
    pipe: Any, rank: int, size: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    import torch

    torch.set_num_threads(1)
    try:
        result: Any = function(*args)
    except BaseException as error:
        result = Failed(error)
    pipe.send(result)
    pipe.close()
    from composable.distributed.starting import leave_processes

    leave_processes()
    os._exit(0)
