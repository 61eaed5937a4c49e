"""Record a run for replay and comparison."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from composable._support.checks import check_flag, check_one_of
from composable._support.paths import check_no_link, hash_prefix, open_to_write, truncate
from composable._support.warn import warn_user
from composable.checkpoint.atomic import make_folder
from composable.checkpoint.compare import digest
from composable.checkpoint.errors import UnwritableCheckpointError
from composable.core.callback import Callback, check_state
from composable.core.logger import to_numbers
from composable.core.state import State
from composable.core.stateful import Count
from composable.optim.learning_rates import LearningRates
from composable.resume.manager import UnsavedCheckpointWarning
from composable.runs import records
from composable.runs.environment import describe_script
from composable.runs.events import EVENTS, EventLog
from composable.storage.folders import address, as_folder

if TYPE_CHECKING:
    from composable.core.callback import AttachedRun
    from composable.core.logger import Logger


_INTERVAL = 100


class StepObserver:
    """Receives what a run would record, and ignores it."""

    def on_begin(self, description: Mapping[str, Any]) -> None:
        """Receive the description of the run."""

    def on_step(self, batch: int, values: Mapping[str, Any]) -> None:
        """Receive the values of a batch, exact."""


class RunRecorder(Callback):
    """Records the configuration of a run, and the results of every step.

    `run.json` holds the configuration: algorithms, seed, versions, commit, platform, and the script
    with its arguments. `steps.jsonl` holds the exact loss and learning rates of each batch, and the
    results of each evaluation. `composable replay` and `composable diff` read both files.
    `events.jsonl` holds what is not reproducible: starts, ends, times and warnings, for `composable
    report`.

    The `Trainer` adds one for its `save_folder`, unless `callbacks` contains one. Losses are copied
    to the host in batches of 100, so no step synchronizes with the device.

    Args:
        folder: The run folder, which also holds the checkpoints.
        weights: Record a digest of every weight and buffer after each batch, so that a comparison
            can name the first tensor that differs. This reads the whole model and synchronizes with
            the device at every step.
        on_error: "raise" to raise if a file cannot be written, "warn" to warn and continue.

    Raises:
        ValueError: `on_error` is neither "raise" nor "warn".

    Example:
        >>> from composable.runs import RunRecorder
        >>> RunRecorder("runs/a", weights=True).folder.name
        'a'
    """

    records_run = True

    def __init__(
        self, folder: str | Path, *, weights: bool = False, on_error: str = "raise"
    ) -> None:
        check_one_of("on_error", on_error, ("raise", "warn"))
        check_flag("weights", weights)
        self.folder = as_folder("folder", folder)
        self.weights = weights
        self.on_error = on_error
        self.observer: StepObserver | None = None
        """Receives each record at once; nothing is written then."""
        self._events = EventLog(self.folder)
        self._pending: list[tuple[int, int, dict[str, Any]]] = []
        self._bytes, self._hash = 0, sha256()
        self._digest = self._hash.hexdigest()
        self._opened = self._begun = self._trained = False
        self._rates: dict[str, Any] | None = None
        self._results: Mapping[str, Any] = {}

    def attach(self, run: "AttachedRun") -> None:
        """Let the run say when it begins and ends."""
        run.recorders.append(self)

    # --- the configuration ---

    def begin(self, description: Mapping[str, Any], state: State) -> None:
        """Record the configuration; the `Trainer` calls this at the start of training.

        Raises:
            UnwritableCheckpointError: The file cannot be written, and `on_error` is "raise".
        """
        if self.observer is not None:
            self.observer.on_begin(description)
            return
        self._events.start(state.timestamp)
        if self._begun:
            return
        self._begun = True
        script = describe_script()
        if "command" not in description:  # record_command=False
            del script["arguments"]
        record = {
            **description,
            **script,
            "save_folder": address(self.folder.absolute()),
            "batch": state.timestamp.batch,
            "time": time.time(),
        }
        with self._writing():
            make_folder(self.folder)
            self._open_steps()
            records.add_record(self.folder, record)
            self._events.flush()

    def end(self, state: State, error: BaseException | None) -> None:
        """Record the end of training; the `Trainer` calls this, after `close`.

        Args:
            state: The last state.
            error: The error that ended training.
        """
        if self.observer is None and self._begun:
            self._events.end(state.timestamp, error)
            with self._writing():
                self._events.flush()

    # --- every step ---

    def batch_start(self, state: State, logger: "Logger") -> None:
        """Discard the values of the previous batch."""
        self._trained, self._rates = False, None

    def after_train_batch(self, state: State, logger: "Logger") -> None:
        """Note that the batch has a loss."""
        self._trained = True

    def after_optimizer_step(self, state: State, logger: "Logger") -> None:
        """Note the learning rates of the step."""
        self._rates = LearningRates(state.optimizers).read()

    def batch_end(self, state: State, logger: "Logger") -> None:
        """Record the step."""
        values: dict[str, Any] = {"loss": state.loss if self._trained else None}
        values.update({"skipped": True} if self._rates is None else self._rates)
        if self.weights:
            named = state.model.state_dict().items()
            values |= {f"weights/{n}": digest(t) for n, t in named if isinstance(t, Tensor)}
        began = state.previous_timestamp
        self._add(began.batch, began.epoch, values)
        if self.observer is None:
            self._events.batch_end(state.timestamp)

    def eval_before_all(self, state: State, logger: "Logger") -> None:
        """Note the results of earlier evaluations."""
        self._results = state.metrics

    def eval_after_all(self, state: State, logger: "Logger") -> None:
        """Record the new results."""
        new = {k: v for k, v in state.metrics.items() if v is not self._results.get(k)}
        values = {f"{label}/{n}": v for label, results in new.items() for n, v in results.items()}
        now = state.timestamp
        if values and now.batch:
            self._add(now.batch - 1, now.epoch, values)

    def _add(self, batch: int, epoch: int, values: dict[str, Any]) -> None:
        if self.observer is not None:
            (numbers,) = to_numbers([values])
            self.observer.on_step(batch, {n: records.as_exact(v) for n, v in numbers.items()})
            return
        self._pending.append((batch, epoch, values))
        if len(self._pending) >= _INTERVAL:
            self.flush()

    # --- the file ---

    def flush(self) -> None:
        """Write the pending lines.

        Raises:
            UnwritableCheckpointError: The file cannot be written, and `on_error` is "raise".
        """
        if self._pending:
            with self._writing():
                self._write()
            with self._writing():  # also if the steps cannot be written
                self._events.flush()

    def _write(self) -> None:
        if not self._opened:
            self._open_steps()
        numbers = to_numbers(values for _, _, values in self._pending)
        raw = b"".join(
            records.write_line(batch, epoch, values)
            for (batch, epoch, _), values in zip(self._pending, numbers, strict=True)
        )
        self._opened = False  # until all lines are written
        with open_to_write(self.folder / records.STEPS, "ab") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        self._opened = True
        self._pending = []
        self._bytes += len(raw)
        self._hash.update(raw)
        self._digest = self._hash.hexdigest()

    def _open_steps(self) -> None:
        """Truncate the file to the lines that this run has written, or start a new file."""
        path = self.folder / records.STEPS
        check_no_link(path)
        check_no_link(self.folder / EVENTS)
        self._hash = hash_prefix(path, self._bytes)
        if self._bytes and self._hash.hexdigest() == self._digest:
            truncate(path, self._bytes)
        else:  # the file of another run, or a new folder
            if path.exists() and path.stat().st_size:
                records.rotate_file(path)
            if (self.folder / EVENTS).exists():
                records.rotate_file(self.folder / EVENTS)
            open_to_write(path, "ab").close()
            self._bytes, self._hash = 0, sha256()
            self._digest = self._hash.hexdigest()
        self._opened = True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnwritableCheckpointError) as error:
            message = f"{self.folder}: the run record cannot be written: {error}."
            if self.on_error == "raise":
                raise UnwritableCheckpointError(message) from error
            warn_user(message, UnsavedCheckpointWarning)

    def close(self) -> None:
        """Write the pending lines."""
        self._events.close()
        self.flush()

    # --- its own state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file and its hash."""
        self.flush()
        return {"bytes": self._bytes, "sha256": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the length and the hash: later lines are truncated before the next write.

        Raises:
            ValueError: A value is not what `state_dict` returns.
        """
        check_state(self, state, {"bytes": Count, "sha256": str})
        self._pending = []
        self._bytes, self._digest = state["bytes"], state["sha256"]
        self._opened = False
