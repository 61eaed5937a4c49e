"""Signals that end a run: handled between batches, after a checkpoint is saved."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger("composable")

REPEATED_WITHIN = 3.0  # seconds; launchers send signals on within about 0.1 s


class Preempted(SystemExit):
    """SIGTERM ended the run, after its last batch was finished. The exit code is 143."""


class Signals:
    """The first SIGINT or SIGTERM that arrives during training.

    It is an attribute, and not a bit of the dispatcher's requests: a handler runs between any two
    bytecodes, and setting a bit of a value that the loop is just changing could lose one of them.

    Args:
        shared: Whether several processes agree on signals.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.received: int | None = None
        """The signal that ends the run."""
        self.arrived: int | None = None
        """The signal that this process received; with several, they agree on it first."""
        self._saves = False
        self._arrival = 0.0  # of the first signal, in seconds of the monotonic clock
        self._watches_workers: Any = None  # the handler of SIGCHLD that was replaced

    @contextmanager
    def handled(self, *, saves: bool = False) -> Iterator[None]:
        """Record the first signal, and end the process at the second.

        Args:
            saves: Whether a checkpoint is saved after the first signal, which its message says.

        Works in the main thread only, where Python runs signal handlers. Afterwards the handlers
        are restored. A signal that is ignored stays ignored.
        """
        self.received, self.arrived, self._saves = None, None, saves
        self._watches_workers = None
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handle = self._handler(os.getpid())
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        ours = [n for n, handler in before.items() if handler not in (signal.SIG_IGN, None)]
        try:
            for number in ours:
                signal.signal(number, handle)
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])
            if self._watches_workers is not None:
                signal.signal(signal.SIGCHLD, self._watches_workers)

    def _handler(self, owner: int):  # type: ignore[no-untyped-def]
        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a DataLoader worker, forked with this handler installed
                if number == signal.SIGTERM:
                    os._exit(128 + number)
                return
            if self.arrived is not None:
                if self.shared and number != self.arrived:
                    return  # a launcher passes the signal of a terminal on as another one
                if self._is_repetition(number):
                    return
                raise interruption(number)
            log.warning(
                "%s: finishing this batch%s; the same signal again aborts",
                signal.Signals(number).name,
                " and saving a checkpoint"
                if self._saves
                else ", and saving nothing, since there is no save_folder",
            )
            self.arrived, self._arrival = number, time.monotonic()
            self._ignore_ends_of_workers()
            if not self.shared:
                self.received = number

        return handle

    def _is_repetition(self, number: int) -> bool:
        """Return whether a launcher has sent on a signal that this process also received itself.

        A scheduler such as Slurm signals all processes of a job, the launcher and its processes.
        """
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        repeated = number == self.arrived and time.monotonic() < self._arrival + REPEATED_WITHIN
        return launched and repeated

    def _ignore_ends_of_workers(self) -> None:
        """Have the signal that ends the workers of a loader not end the current batch.

        A scheduler signals these processes too. The handler that PyTorch then calls raises an error
        at any point of the batch. A loader that has to wait for a dead worker still raises one.
        """
        if hasattr(signal, "SIGCHLD"):
            self._watches_workers = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def interruption(self) -> BaseException:
        """Return the exception that ends the run."""
        return interruption(self.received or signal.SIGINT)


def interruption(number: int) -> BaseException:
    """Return a KeyboardInterrupt for SIGINT, and otherwise an exit with 128 + the signal."""
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Preempted(128 + number)
