"""The errors of a loader whose worker processes died."""

import time

import torch

from composable._support.notes import add_note

LOADER_ERRORS = (RuntimeError, ConnectionError, EOFError)
"""What a `DataLoader` raises if one of its workers died."""
_DIED = "DataLoader worker (pid"
_SECONDS = 10.0  # on a busy machine the signal comes late; without a dead worker this is rare
_RAISED = "in DataLoader worker process"  # the dataset raised the error, in a live worker


def explain_dead_worker(error: Exception, loader: object) -> None:
    """Add a note to the error of a `DataLoader` whose worker process died.

    A worker that dies while it sends a batch closes the connection, and PyTorch reports no more.
    """
    ended = isinstance(error, (ConnectionError, EOFError)) and _RAISED not in str(error)
    if _DIED in str(error) or (
        ended and bool(getattr(loader, "num_workers", 0)) and _worker_died()
    ):
        add_note(
            error,
            "a worker process of the loader died: most often the memory (or the shared memory of "
            "a container) is full. Use fewer workers or smaller batches; num_workers=0 shows an "
            "error of the dataset itself. The run can be resumed from its last checkpoint.",
        )


def _worker_died() -> bool:
    """Wait until PyTorch reports that a worker died, which follows the end of its connection.

    Without waiting, the handler of its signal could raise while the error is being printed.
    """
    end = time.monotonic() + _SECONDS
    try:
        while time.monotonic() < end:
            torch._C._error_if_any_worker_fails()
            time.sleep(0.01)
    except RuntimeError as error:  # from this call, or from the handler of the signal
        return _DIED in str(error)
    return False
