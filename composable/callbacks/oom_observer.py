"""Write the allocations at an out-of-memory error."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from composable._support.checks import as_path, check_count
from composable._support.warn import warn_user
from composable.callbacks._allocations import record_allocations, stop_recording, write_snapshot
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.distributed import Processes

_active: list["OOMObserver"] = []


class OOMObserver(Callback):
    """Writes which allocations fill the memory of a CUDA device when it is exhausted.

    It writes `oom.json`, the snapshot of `torch.cuda.memory` as JSON, and `oom.txt`, a summary, at
    the moment of the error: before any tensor is freed. A later error replaces them, such as the
    last one of `microbatch_size="auto"`, which halves the microbatch after each. With several
    processes, rank 0 is observed. A run on another device gets a warning, and nothing is written.
    See `MemorySnapshot` for the format.

    Args:
        folder: The folder of the files; it is created.
        filename: The name of the files, without a suffix.
        max_entries: The number of recent allocations to keep, at least 1.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> from composable.callbacks import OOMObserver
        >>> OOMObserver("runs/a").path.name
        'oom.json'
    """

    def __init__(
        self, folder: str | Path, *, filename: str = "oom", max_entries: int = 100_000
    ) -> None:
        self.path = as_path("folder", folder) / f"{as_path('filename', filename).name}.json"
        check_count("max_entries", max_entries, 1)
        self.max_entries = max_entries
        self._device = torch.device("cpu")

    def fit_start(self, state: State, logger: Logger) -> None:
        """Record allocations, and wait for an error."""
        if not Processes.current().is_main or self in _active:
            return
        if record_allocations(self, state.device, self.max_entries):
            self._device = state.device
            _attach()
            _active.append(self)

    def close(self) -> None:
        """Stop recording."""
        if self in _active:
            _active.remove(self)
        stop_recording(self)

    def write(self) -> None:
        """Write the files; an error is a warning, so that the out-of-memory error is raised."""
        try:
            write_snapshot(self.path, self._device)
        except Exception as error:
            warn_user(f"OOMObserver could not write {self.path}: {error}")


@cache  # PyTorch cannot detach a function, so that a process attaches one
def _attach() -> None:
    attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
    attach(_write_all)


def _write_all(*sizes: int) -> None:
    for observer in list(_active):
        observer.write()
