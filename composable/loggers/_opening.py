"""Open back ends in threads, one at a time: to import their packages takes seconds."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache


def in_background(function: Callable[[], None]) -> Future[None]:
    """Call a function in a thread, when no other one runs that was passed to this function."""
    lock = _lock()

    def alone() -> None:
        with lock:
            function()

    thread = ThreadPoolExecutor(1, thread_name_prefix="logger")
    called = thread.submit(alone)
    thread.shutdown(wait=False)  # it ends with the call
    return called


@cache
def _lock() -> "threading.RLock":
    # A process that is forked during an import never sees the end of it: a worker of a DataLoader
    # that imports the same module would wait for ever. So a fork waits until no function runs.
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
