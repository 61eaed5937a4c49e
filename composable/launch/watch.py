"""What the launcher of each of several machines does after the run has failed."""

import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from composable.distributed.starting import REPORT

INTERVAL = 0.5  # seconds between two looks
PATIENCE = 10.0  # seconds in which processes end by themselves


class Watch(Thread):
    """Ends the processes of this machine that are still there after a failure of the run.

    They may be stopped or hang, so that nothing in them can, and the agent sees its machine
    alone. The failure is reported in the store of machine 0.

    Args:
        address: The address of machine 0.
        port: The port of its store.
        timeout: Seconds to wait for it.
    """

    def __init__(self, address: str, port: int, timeout: float) -> None:
        super().__init__(daemon=True)
        self._store = address, port, None, False, timedelta(seconds=timeout), False
        self._ends: SimpleQueue[str | None] = SimpleQueue()
        self.start()

    def end(self, failure: str | None) -> None:
        """Stop; report a failure of this machine before, unless another one was reported.

        A thread that is inside torch when Python ends would abort the process.
        """
        self._ends.put(failure)
        if failure is not None:
            time.sleep(3 * INTERVAL)  # the others read it, from this machine if it is 0
        self.join(3 * INTERVAL)  # machine 0 may be cut off

    def run(self) -> None:
        """Wait for a report, and then for the end of the processes."""
        with suppress(RuntimeError):  # machine 0 has ended, or is cut off
            store = TCPStore(*self._store)
            while not store.check([REPORT]):
                with suppress(Empty):
                    failure = self._ends.get(timeout=INTERVAL)
                    if failure is not None:
                        store.set(REPORT, failure)
                    return
            said = store.get(REPORT).decode()
            try:
                self._ends.get(timeout=PATIENCE)
            except Empty:
                end_processes(said)


def end_processes(said: str) -> None:
    """End the processes of this one, which write the stacks of their threads."""
    print(
        f"composable launch: {PATIENCE:.0f} s after the run failed, the processes of this machine "
        f"are still there, and are ended: {said}",
        file=sys.stderr,
    )
    for number in (signal.SIGABRT, signal.SIGCONT, signal.SIGKILL):
        for status in Path("/proc").glob("[0-9]*/stat"):  # of Linux
            with suppress(OSError):  # it has ended
                if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    os.kill(int(status.parent.name), number)
        time.sleep(INTERVAL)
