"""A worker process of a comparison.

It reads requests from its standard input, runs one at a time, and writes the replies to its
standard output. Whatever the trials print goes to the log file of the worker.
"""

import faulthandler
import gc
import os
import pickle
import queue
import sys
import threading
from pathlib import Path
from typing import IO, Any, Protocol

__all__ = ["READY", "Connection", "Task", "main"]

# torch and the rest of the library are imported after the log file is open, for their errors.

READY = "ready"
"""The first message of a worker."""


class Connection:
    """The messages between a worker and the process that started it."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._outgoing = outgoing
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(incoming,), daemon=True).start()

    def _read(self, incoming: IO[bytes]) -> None:
        """Receive messages; end the process when the other one has ended."""
        try:
            while True:
                self._received.put(pickle.load(incoming))
        except (EOFError, OSError):
            os._exit(0)

    def receive(self) -> Any:
        """Wait for the next message."""
        return self._received.get()

    def send(self, message: Any) -> None:
        """Send a message."""
        pickle.dump(message, self._outgoing)
        self._outgoing.flush()


class Task(Protocol):
    """What a worker does for a request."""

    def run(self, build: Any, connection: Connection) -> Any:
        """Return the reply."""


def main(folder: str, number: str) -> None:
    """Run the requests that arrive, until there are no more.

    Args:
        folder: The folder of the pool.
        number: The number of the worker.
    """
    connection = _connect()
    # As in the process that started this one: before the folder of the script is on the path, which
    # may have a file of the name of a module.
    import torch

    from composable.comparison.trials.building import BuildError

    with (Path(folder) / "setup.pickle").open("rb") as file:
        setup = pickle.load(file)
        sys.path[:] = setup["path"]
        sys.argv = setup["argv"]
        build = pickle.load(file)  # after the path is set: it may import modules
    torch.set_num_threads(setup["threads"])
    connection.send(READY)
    while True:
        task: Task = pickle.loads(connection.receive())
        try:
            reply = task.run(build, connection)
        except BuildError as error:  # it ends the comparison; any other error ends this process
            reply = error
        connection.send((reply, peak_memory()))
        del task, reply
        gc.collect()  # a Trainer has cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _connect() -> Connection:
    """Keep standard input and output for messages; what trials print goes to standard error.

    The standard error of a worker is its log file.
    """
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (2, 1)):
        os.dup2(source, target)
    os.close(nothing)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    return Connection(incoming, outgoing)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had, or 0 if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
