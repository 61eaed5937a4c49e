"""Record the allocations of a few batches."""

from pathlib import Path
from typing import Any

from composable._support.checks import as_path, check_count
from composable._support.paths import next_name
from composable.callbacks._allocations import record_allocations, stop_recording, write_snapshot
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import TimeLike, check_length, progress
from composable.distributed import Processes


class MemorySnapshot(Callback):
    """Records every allocation on a CUDA device during a few batches of training, once a fit.

    It writes `memory-ba<batch>.json`, the snapshot of `torch.cuda.memory` as JSON, and
    `memory-ba<batch>.txt`, a summary. `pickle.dump(json.load(file), other)` converts the snapshot
    to the format of pytorch.org/memory_viz. With several processes, rank 0 is recorded. A run on
    another device gets a warning, and nothing is written.

    Args:
        folder: The folder of the files; it is created. Existing files are kept.
        skip_batches: Number of batches of the fit before the recording starts. The first batch
            allocates more than later ones.
        interval: The length of the recording.
        max_entries: The number of recent allocations to keep, at least 1.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> from composable.callbacks import MemorySnapshot
        >>> str(MemorySnapshot("runs/a", interval="5ba").interval)
        '5ba'
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        skip_batches: int = 1,
        interval: TimeLike = "3ba",
        max_entries: int = 100_000,
    ) -> None:
        self.folder = as_path("folder", folder)
        check_count("skip_batches", skip_batches)
        check_count("max_entries", max_entries, 1)
        self.skip_batches = skip_batches
        self.interval = check_length("interval", interval)
        self.max_entries = max_entries
        self._start: int | None = None
        self._since: Any = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Set the batch at which the recording starts."""
        main = Processes.current().is_main
        self._start = state.timestamp.batch + self.skip_batches if main else None

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start the recording if due."""
        if state.timestamp.batch == self._start:
            self._start = None
            if record_allocations(self, state.device, self.max_entries):
                self._since, _ = progress(state, self.interval)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write the recording if it is complete."""
        if self._since is None:
            return
        now, length = progress(state, self.interval)
        if now - self._since >= length:
            path = self.folder / f"memory-ba{state.timestamp.batch}.json"
            write_snapshot(next_name(path), state.device)
            self.close()

    def close(self) -> None:
        """Stop the recording."""
        self._since = None
        stop_recording(self)
