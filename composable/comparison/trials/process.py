"""A worker process, seen from the process that started it."""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from composable.core._paths import open_to_write

__all__ = ["Ended", "Reply", "WorkerError", "WorkerProcess"]

_TAIL = 1500
"""The number of characters of a log that an error shows."""
_SECONDS = 10.0
# Not `-m`: the functions of the user's script belong to another `__main__`.
_CODE = "import sys; from composable.comparison.trials.worker import main; main(*sys.argv[1:])"


class WorkerError(RuntimeError):
    """A worker process cannot start."""


@attrs.frozen(eq=False)
class Reply:
    """A message of a worker."""

    worker: "WorkerProcess"
    message: Any


@attrs.frozen(eq=False)
class Ended:
    """A worker has ended."""

    worker: "WorkerProcess"


class WorkerProcess:
    """A worker process, whose messages are put into a queue.

    Args:
        folder: The folder of the pool, with the file that the worker reads.
        number: The number of the worker, of its log file.
        environment: Environment variables for it.
        replies: The queue of `Reply` and `Ended`.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        environment: Mapping[str, str],
        replies: "queue.SimpleQueue[Reply | Ended]",
    ) -> None:
        self.number, self.log = number, folder / f"worker-{number}.log"
        self._start_of_log = self.log.stat().st_size if self.log.exists() else 0
        self.task: Any = None
        """What the worker is at, for the owner."""
        self.deadline: float | None = None
        """When the owner ends it, in seconds of `time.monotonic`."""
        self.ready = False
        """Whether it has read the build function."""
        with open_to_write(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(folder), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": _python_path(), **environment},
                # A Ctrl-C in a terminal goes to the parent alone, which ends its workers; and each
                # worker can be ended together with the processes of its loaders.
                start_new_session=os.name == "posix",
            )
        threading.Thread(target=self._read, args=(replies,), daemon=True).start()

    def _read(self, replies: "queue.SimpleQueue[Reply | Ended]") -> None:
        try:
            while True:
                message = pickle.load(self._process.stdout)  # type: ignore[arg-type]
                replies.put(Reply(self, message))
        except Exception:  # the end, also in the middle of a message
            replies.put(Ended(self))

    def send(self, message: Any) -> None:
        """Send a message; to a worker that has ended, nothing is sent."""
        with suppress(OSError, ValueError):
            pickle.dump(message, self._process.stdin)  # type: ignore[arg-type]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def kill(self) -> None:
        """End the worker, and the processes that it has started, at once."""
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def cause(self) -> str:
        """Return why the process has ended, with the end of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)
        code = self._process.returncode
        why = f"exit code {code}"
        if code is not None and code < 0:
            why = f"signal {_name(-code)}"
            if -code == getattr(signal, "SIGKILL", None):
                why += ", which the operating system sends when the memory is full"
        return f"the worker process ended with {why}; {self.describe_log()}"

    def describe_log(self) -> str:
        """Return the path of the log, and its last lines."""
        text = ""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._start_of_log)
            text = file.read().decode(errors="replace").strip()
        if not text:
            return f"its log {self.log} is empty."
        return f"the end of its log {self.log}:\n{text[-_TAIL:]}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _python_path() -> str:
    """Return the search path of a worker until it has that of this process: it finds this file."""
    root = str(Path(__file__).parents[3])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
