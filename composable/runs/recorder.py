"""Records a run, so that it can be replayed and compared."""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from composable.callbacks.checkpoint_saver import UnsavedCheckpointWarning
from composable.checkpoint import folders
from composable.checkpoint.compare import digest
from composable.checkpoint.errors import UnwritableCheckpointError
from composable.core.callback import Callback
from composable.core.logger import to_numbers
from composable.core.state import State
from composable.optim.learning_rates import LearningRates
from composable.runs import records
from composable.runs.environment import describe_script

if TYPE_CHECKING:
    from composable.core.logger import Logger

__all__ = ["RunRecorder"]

_INTERVAL = 100


class StepObserver(Protocol):
    """Receives what a run would record."""

    def on_begin(self, description: Mapping[str, Any]) -> None:
        """Receive the description of the run."""

    def on_step(self, batch: int, values: Mapping[str, Any]) -> None:
        """Receive the values of a batch, exact."""


class RunRecorder(Callback):
    """Writes down what is needed to repeat a run, and what it did at every step.

    `run.json` has what the run is made of: algorithms, seed, versions, commit, platform, and the
    script with its arguments. `steps.jsonl` has, for each batch, the exact loss and learning rates,
    and the results of each evaluation. `composable replay` and `composable diff` read them.

    The `Trainer` makes one for its `save_folder`, unless `callbacks` has one. Losses are held, and
    turned into numbers a hundred at a time: no step waits for the device.

    Args:
        folder: The run folder, which has the checkpoints too.
        weights: Write down a digest of every weight and buffer after each batch. Then the first
            tensor that differs can be named at once. It reads all of the model at every step, and
            waits for the device.
        on_error: What to do where it can't be written: "raise", or "warn" and go on.

    Raises:
        ValueError: `on_error` is something else.

    Example:
        >>> from composable.runs import RunRecorder
        >>> RunRecorder("runs/a", weights=True).folder.name
        'a'
    """

    def __init__(
        self, folder: str | Path, *, weights: bool = False, on_error: str = "raise"
    ) -> None:
        if on_error not in ("raise", "warn"):
            raise ValueError(f"on_error={on_error!r} must be one of 'raise', 'warn'.")
        self.folder = Path(folder)
        self.weights = weights
        self.on_error = on_error
        self.observer: StepObserver | None = None
        """Receives each record at once; nothing is written then."""
        self._pending: list[tuple[int, int, dict[str, Any]]] = []
        self._bytes, self._hash = 0, sha256()
        self._digest = self._hash.hexdigest()
        self._taken_up = self._begun = False
        self._trained = False
        self._rates: dict[str, Any] | None = None
        self._results: Mapping[str, Any] = {}

    # --- how it was begun ---

    def begin(self, description: Mapping[str, Any], state: State) -> None:
        """Write down what the run is; the `Trainer` calls it when training begins.

        Raises:
            UnwritableCheckpointError: The system refuses, and `on_error` is "raise".
        """
        if self.observer is not None:
            self.observer.on_begin(description)
            return
        if self._begun:
            return
        self._begun = True
        record = {
            **description,
            **describe_script(),
            "save_folder": str(self.folder.absolute()),
            "batch": state.timestamp.batch,
            "time": time.time(),
        }

        def write() -> None:
            folders.make_folder(self.folder)
            self._take_up()
            records.add_record(self.folder, record)

        self._try(write)

    # --- every step ---

    def batch_start(self, state: State, logger: "Logger") -> None:
        """Nothing is known of the batch to come."""
        self._trained, self._rates = False, None

    def after_train_batch(self, state: State, logger: "Logger") -> None:
        """It has a loss of its own."""
        self._trained = True

    def after_optimizer_step(self, state: State, logger: "Logger") -> None:
        """It was not skipped; these are its learning rates."""
        self._rates = LearningRates(state.optimizers).read()

    def batch_end(self, state: State, logger: "Logger") -> None:
        """Take down the step."""
        values: dict[str, Any] = {"loss": state.loss if self._trained else None}
        values.update({"skipped": True} if self._rates is None else self._rates)
        if self.weights:
            named = state.model.state_dict().items()
            values |= {f"weights/{n}": digest(t) for n, t in named if isinstance(t, Tensor)}
        began = state.previous_timestamp
        self._add(began.batch, began.epoch, values)

    def eval_before_all(self, state: State, logger: "Logger") -> None:
        """The results that are there are older."""
        self._results = state.metrics

    def eval_after_all(self, state: State, logger: "Logger") -> None:
        """Take down the results."""
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
        """Write what is held.

        Raises:
            UnwritableCheckpointError: The system refuses, and `on_error` is "raise".
        """
        if self._pending:
            self._try(self._write)

    def _write(self) -> None:
        if not self._taken_up:
            self._take_up()
        held = to_numbers(values for _, _, values in self._pending)
        raw = b"".join(
            records.write_line(batch, epoch, values)
            for (batch, epoch, _), values in zip(self._pending, held, strict=True)
        )
        self._taken_up = False  # unless all of it is written
        with (self.folder / records.STEPS).open("ab") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        self._taken_up = True
        self._pending = []
        self._bytes += len(raw)
        self._hash.update(raw)
        self._digest = self._hash.hexdigest()

    def _take_up(self) -> None:
        """Cut the file to what this run has written up to here, or begin another."""
        path = self.folder / records.STEPS
        self._hash = _hash_of(path, self._bytes)
        if self._bytes and self._hash.hexdigest() == self._digest:
            os.truncate(path, self._bytes)
        else:  # of another run, or of this one in another folder
            if path.exists() and path.stat().st_size:
                records.put_aside(path)
            path.touch()
            self._bytes, self._hash = 0, sha256()
            self._digest = self._hash.hexdigest()
        self._taken_up = True

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, UnwritableCheckpointError) as error:
            message = f"{self.folder}: the record of the run can't be written: {error}."
            if self.on_error == "raise":
                raise UnwritableCheckpointError(message) from error
            warnings.warn(message, UnsavedCheckpointWarning, stacklevel=4)

    def close(self) -> None:
        """Write what is held."""
        self.flush()

    # --- what it remembers ---

    def state_dict(self) -> dict[str, Any]:
        """How long the file is, and the hash of that."""
        self.flush()
        return {"bytes": self._bytes, "sha256": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: what was written after it is taken out when there is more to write."""
        self._pending = []
        self._bytes, self._digest = state["bytes"], state["sha256"]
        self._taken_up = False


def _hash_of(path: Path, size: int) -> Any:
    """The hash of the first bytes of a file, or of all where it has fewer."""
    total = sha256()
    if path.exists():
        with path.open("rb") as file:
            while size and (chunk := file.read(min(size, 1 << 20))):
                total.update(chunk)
                size -= len(chunk)
    return total
