"""Which process of a launch failed first, and why."""

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # how the agent ends the other processes
CRASHES = tuple(-number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS))
CRASHED_WITHIN = 10.0  # seconds; the agent itself sends SIGKILL after 30
TAIL = 30  # lines of the standard error of a process that left no traceback


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """Return the rank and the failure that caused the others.

    The agent looks every 0.1 s, and counts in seconds, while other ranks fail within milliseconds
    after the first, when their connections close. So the time of an exception is read from its
    error file. A crash precedes the exceptions of other ranks, and a process that was stopped
    caused nothing.

    Args:
        failures: The failures of this machine, by rank.
    """
    earliest = min(map(_moment, failures.values()))

    def order(rank: int) -> tuple[int, float]:
        failure = failures[rank]
        moment = _moment(failure)
        if failure.exitcode in STOPPED and not _raised(failure):
            return 2, moment
        crashed = failure.exitcode in CRASHES and moment < earliest + CRASHED_WITHIN
        return 0 if crashed else 1, moment

    rank = min(failures, key=order)
    return rank, failures[rank]


def _raised(failure: ProcessFailure) -> bool:
    """Return whether an exception ended a process; it may have been stopped while it ended."""
    return Path(failure.error_file).is_file()


def _moment(failure: ProcessFailure) -> float:
    """Return the time of a failure, in seconds since 1970."""
    if _raised(failure):
        return Path(failure.error_file).stat().st_mtime
    return float(failure.timestamp)


def status_of(failure: ProcessFailure) -> int:
    """Return the exit status that a failure has in a shell: 1 for an exception."""
    if failure.exitcode > 0:
        return failure.exitcode
    return 1 if _raised(failure) else 128 - failure.exitcode


def describe_failures(
    rank: int,
    failures: Mapping[int, ProcessFailure],
    stderr_of: Callable[[int], str | None],
    folder: str,
) -> str:
    """Describe the first failure with its traceback, and the ends of the other processes.

    Args:
        rank: The rank that failed first.
        failures: All failures, by rank.
        stderr_of: Returns the file of the standard error of a local rank.
        folder: The folder of the log files.
    """
    first = failures[rank]
    lines = [f"composable launch: rank {rank} ended first: {ending(first)}"]
    lines += [f"  {line}" for line in _explanation(first, stderr_of(first.local_rank))]
    lines += [
        f"composable launch: rank {other} ended after it: {ending(failure)}"
        for other, failure in sorted(failures.items())
        if other != rank
    ]
    lines.append(f"composable launch: logs of the ranks: {folder}")
    return "\n".join(lines)


def ending(failure: ProcessFailure) -> str:
    """Return how a process ended."""
    number = -failure.exitcode if failure.exitcode < 0 else failure.exitcode - 128
    if _raised(failure):
        how = "exception"
    elif number in (signal.SIGTERM, signal.SIGINT):
        how = f"stopped by {signal.Signals(number).name}"
    elif failure.exitcode < 0:
        how = f"killed by {failure.signal_name()}"
    else:
        how = f"exit status {failure.exitcode}"
    return f"{how} (process {failure.pid})"


def _explanation(failure: ProcessFailure, stderr: str | None) -> list[str]:
    """Return the lines of the traceback, or the last lines of the standard error."""
    message: Any = failure.message  # of an error file, a mapping, whatever torch declares
    if isinstance(message, dict):
        shown: str = message["extraInfo"]["py_callstack"]
        return shown.splitlines()
    if stderr is None:
        return ["It left no traceback; its output is above."]
    last = Path(stderr).read_text(errors="replace").splitlines()[-TAIL:]
    if not last:
        return [f"It left no traceback, and wrote nothing to {stderr}."]
    return [f"It left no traceback. The end of {stderr}:", *last]
