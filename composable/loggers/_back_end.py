"""The base class of the loggers that write through another package."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from composable._support.checks import check_count
from composable._support.paths import open_to_write
from composable._support.warn import warn_user
from composable.checkpoint.safetensors import write_tensors
from composable.core.destination import LoggerDestination
from composable.core.logger import Columns, Logger, Rows, UnsupportedLogError, to_numbers
from composable.core.state import State
from composable.core.time import Timestamp
from composable.distributed import Processes
from composable.loggers._histograms import Histogram
from composable.loggers._images import figure_png, png, to_pixels
from composable.loggers._offline import LocalLog
from composable.loggers._opening import in_background

_MOST_FAILURES = 3
_MOST_UNWRITTEN = 10_000  # records in a checkpoint, should the package write nothing for long


class LoggerFailureWarning(UserWarning):
    """A logger could not write; the run continues without these records."""


@attrs.frozen
class LogTime:
    """When something was logged: the time of the run, and that of the clock in seconds."""

    timestamp: Timestamp
    clock: float = attrs.field(factory=time.time)

    @property
    def step(self) -> int:
        """The number of batches trained: the axis of every chart."""
        return self.timestamp.batch


class BackEndLogger(LoggerDestination):
    """Buffers metrics, converts logged values, and writes on the main process only.

    A subclass opens the back end in `_open` and writes in the methods `_write_*`; of those that it
    does not define, the `Logger` warns. An error in any of them never ends the run: it becomes one
    `LoggerFailureWarning`. After three failures in a row nothing is written until the next `fit`.

    `state_dict` holds what `_run_state` returns, the last step of every name, and the records that
    the package has not written to disk yet. A resumed run opens the same run of the back end,
    writes those of these records that a killed process lost, and drops what the back end has.

    Args:
        flush_interval: Number of records of metrics to buffer, at least 1. They are also written
            at the end of every epoch, evaluation and call, and before a checkpoint.
    """

    package: ClassVar[str] = ""
    """The package that it imports on use."""
    extra: ClassVar[str] = ""
    """The extra of composable that installs the package."""
    writes_late: ClassVar[bool] = False
    """Whether the package brings records to disk later than it takes them."""

    def __init__(self, *, flush_interval: int = 100) -> None:
        check_count("flush_interval", flush_interval, 1)
        if self.package and not is_installed(self.package):
            raise ModuleNotFoundError(
                f"{type(self).__name__} requires the package {self.package}, which is not "
                f'installed: pip install "composable[{self.extra}]".'
            )
        self.flush_interval = flush_interval
        self._pending: list[tuple[LogTime, Mapping[str, Any]]] = []
        self._is_open = self._is_off = self._has_warned = self._is_disabled = False
        self._num_failures = 0
        self._saved_run: Any = None  # of the checkpoint, until it is opened
        self._run: Any = None
        self._saved_steps: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._present: Mapping[str, int] = {}
        self._unwritten: deque[tuple[LogTime, Mapping[str, Any]]] = deque(maxlen=_MOST_UNWRITTEN)
        self._local_log: LocalLog | None = None
        self._lost: list[Any] = []  # what the checkpoint has of these
        self._checkpoints: Path | None = None
        """The folder of checkpoints, of which the hyperparameters tell."""
        self.opens_late = False
        """Whether to open the back end in a thread, from the first metrics on, and not at the start
        of `fit`."""
        self._opening: Future[None] | None = None
        self._deferred: list[Callable[[], None]] | None = None  # until it is open

    # --- for subclasses ---

    def _open(self, saved: Any) -> None:
        """Open the back end: a new run, or the one that `_run_state` described."""

    def _steps(self) -> Mapping[str, int]:
        """Return the last step of each name that the back end has, after a resume."""
        return last_steps(self._saved_steps, self._written)

    def _open_log(self) -> LocalLog | None:
        """Return the log of a run that is not online, or None if what it has is of no concern."""
        return None

    def _run_state(self) -> Any:
        """Return what identifies the run, as plain containers."""
        return None

    def _release(self) -> None:
        """Close what is open; `_open` opens it again."""

    def _flush(self) -> None:
        """Write what the package buffers."""

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        """Write records of numbers, strings and None, oldest first."""

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write plain values by name."""

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        """Write pictures in the format PNG."""
        raise UnsupportedLogError

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        raise UnsupportedLogError

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        raise UnsupportedLogError

    def _write_table(self, name: str, columns: Columns, rows: Rows, moment: LogTime) -> None:
        """Write a table, whose rows are lists."""
        raise UnsupportedLogError

    def _write_artifact(self, name: str, path: Path) -> None:
        raise UnsupportedLogError

    # --- logged values ---

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Buffer metrics, and write them if the buffer is full."""
        if self._writes:
            if self._deferred is not None and self._opening is None:
                self._opening = in_background(self._open_run)
            self._pending.append((LogTime(timestamp), metrics))
            if len(self._pending) >= self.flush_interval:
                self.flush()

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the hyperparameters."""
        flat = flatten(hyperparameters)
        folder = flat.get("save_folder")
        self._checkpoints = Path(folder) if isinstance(folder, str) else None
        self._attempt(lambda: self._write_hyperparameters(flat))

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write images."""
        self._each(images, timestamp, self._write_images, lambda some: [*map(png, to_pixels(some))])

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write histograms of 64 bins."""
        self._each(histograms, timestamp, self._write_histogram, Histogram.of)

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Write texts."""
        self._each(texts, timestamp, self._write_text)

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Write a table."""
        self._each(
            {name: rows},
            timestamp,
            lambda one, some, moment: self._write_table(one, columns, some, moment),
            lambda some: [list(row) for row in some],  # the caller may change its own
        )

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Write a figure as an image."""
        self._each({name: figure}, timestamp, self._write_images, lambda one: [figure_png(one)])

    def log_artifact(self, name: str, path: str) -> None:
        """Write a file or a folder."""
        self._open_late()  # the caller may delete it
        self._attempt(lambda: self._write_artifact(name, Path(path)))

    def _log_checkpoints(self) -> None:
        """Write the folder of checkpoints, if there is one."""
        if self._checkpoints is not None:
            self.log_artifact("checkpoints", str(self._checkpoints))

    def _each(
        self,
        values: Mapping[str, Any],
        timestamp: Timestamp,
        write: Callable[[str, Any, LogTime], None],
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Write values by name, those that the back end does not have yet."""
        self.flush()  # earlier metrics first: some back ends take steps in order only
        moment = LogTime(timestamp)

        def write_new() -> None:
            for name, value in converted.items():
                if self._is_new(name, moment.step):
                    write(name, value, moment)
                    self._written[name] = moment.step

        with self._warning():
            # Now, since the values may change before a back end is open.
            new = [name for name in values if self._writes and self._is_new(name, moment.step)]
            converted = {name: convert(values[name]) for name in new}
            self._attempt(write_new)

    # --- when it is written ---

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the back end, also one that had failed."""
        self._num_failures, self._is_off = 0, False
        if self.opens_late and not self._is_open:
            self._deferred = []
        self._attempt(lambda: None)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write the buffered metrics."""
        self.flush()

    eval_after_all = epoch_end

    def flush(self) -> None:
        """Write the buffered metrics, or defer that while the back end is being opened."""
        if self._opening is not None and self._opening.done():
            self._open_late()
        if self._pending:
            records, self._pending = self._pending, []
            self._attempt(lambda: self._write_records(records))

    def _write_records(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        numbers = to_numbers(metrics for _, metrics in records)
        new = [
            (moment, {n: v for n, v in values.items() if self._is_new(n, moment.step)})
            for (moment, _), values in zip(records, numbers, strict=True)
        ]
        new = [(moment, values) for moment, values in new if values]
        self._write_metrics(new)
        if self.writes_late:
            self._unwritten.extend(new)
        for moment, values in new:
            self._written.update(dict.fromkeys(values, moment.step))

    def _is_new(self, name: str, step: int) -> bool:
        return step > self._present.get(name, -1)

    def close(self) -> None:
        """Write the buffered metrics, and release files; the next write opens them again."""
        self._open_late()
        self.flush()
        self._close()

    def _close(self) -> None:
        if self._is_open:
            self._attempt(self._release)
            self._attempt(self._remember_run)
            self._is_open = False

    def _end(self, end: Callable[[], None]) -> None:
        """Close the logger and end the run, also after failures."""
        self.close()
        self._is_off = False
        self._attempt(end)
        self._is_open = False

    def _remember_run(self) -> None:
        self._run = self._run_state()

    # --- failures ---

    @property
    def _writes(self) -> bool:
        return not (self._is_off or self._is_disabled) and Processes.current().is_main

    def _attempt(self, action: Callable[[], None]) -> None:
        """Open the back end and do something; an error becomes a warning."""
        if not self._writes:
            return
        if self._deferred is not None:
            self._deferred.append(action)
            return
        with self._warning():
            if not self._is_open:
                self._finish_opening()
            action()
            self._num_failures = 0

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Turn an error into a warning, the first time."""
        try:
            yield
        except UnsupportedLogError:
            raise
        except Exception as error:  # a package may raise anything
            self._num_failures += 1
            self._is_off = self._is_off or self._num_failures >= _MOST_FAILURES
            if not self._has_warned:
                self._has_warned = True
                more = "Nothing more is logged there" if self._is_off else "Records are missing"
                warn_user(
                    f"{self.name} failed: {type(error).__name__}: {error}. {more}, and the run "
                    "continues; later failures of this logger are not reported.",
                    LoggerFailureWarning,
                )

    # --- opening ---

    def _open_run(self) -> None:
        self._open(self._saved_run)
        if self._saved_run is not None:
            self._present, self._saved_run = self._steps(), None

    def _finish_opening(self) -> None:
        """Open the back end, or wait until the thread that opens it has done so."""
        opening, self._opening = self._opening, None
        self._is_off = True  # unless it opens
        if opening is None:
            self._open_run()
        else:
            opening.result()
        self._is_off, self._is_open = False, True
        self._write_lost()

    def _open_late(self) -> None:
        """Do what was deferred until the back end is open."""
        deferred, self._deferred = self._deferred, None
        for action in deferred or ():
            self._attempt(action)

    # --- resume ---

    def _write_lost(self) -> None:
        """Write the records of the checkpoint that its process had not brought to disk."""
        lost, self._lost = self._lost, []
        if lost:
            self._write_records(
                [(LogTime(one["time"], one["clock"]), one["values"]) for one in lost]
            )

    def _keep_unwritten(self) -> None:
        """Forget the records that are on disk by now."""
        self._local_log = self._local_log or self._open_log()
        on_disk = None if self._local_log is None else self._local_log.read_new()
        late = [
            (moment, values)
            for moment, values in self._unwritten
            if on_disk is not None and any(moment.step > on_disk.get(n, -1) for n in values)
        ]
        self._unwritten.clear()
        self._unwritten.extend(late)

    def run_entries(self) -> Mapping[str, Any]:
        """Return what identifies the open run, or None if none is open."""
        if self._is_open:
            self._attempt(self._flush)
            self._attempt(self._remember_run)
        return {"logger_runs": self._run if self._is_open else None}

    def continue_run(self, entries: Mapping[str, Any]) -> None:
        """Continue the run of the back end that the killed run had begun."""
        if entries.get("logger_runs") is not None:
            self.load_state_dict({"run": entries["logger_runs"], "steps": {}})

    def state_dict(self) -> dict[str, Any]:
        """Write the buffered metrics, and return the id of the run and its last steps."""
        self._open_late()
        self.flush()
        if self._is_open:
            self._attempt(self._flush)
            self._attempt(self._remember_run)
            self._attempt(self._keep_unwritten)
        run = self._run if self._saved_run is None else self._saved_run
        return {
            "run": run,
            "steps": {**self._saved_steps, **self._written},
            "unwritten": [*self._lost, *map(_as_saved, self._unwritten)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the id of the run, which the next write opens.

        Raises:
            ValueError: It is not a state of this class.
        """
        known = state.keys() == {"run", "steps", "unwritten"}
        steps, lost = state.get("steps"), state.get("unwritten")
        if not (known and isinstance(steps, Mapping) and isinstance(lost, list)):
            raise ValueError(
                f"{self.name} was given the state {sorted(state)}, and its own has ['run', "
                "'steps', 'unwritten']: was it saved by another callback?"
            )
        self._pending = []
        self._close()
        self._saved_run, self._lost = state["run"], list(lost)
        self._unwritten.clear()
        self._saved_steps = {str(n): int(step) for n, step in steps.items()}


def last_steps(*found: Mapping[str, int]) -> dict[str, int]:
    """Return the last of the steps that each name has.

    Example:
        >>> from composable.loggers._back_end import last_steps
        >>> last_steps({"loss": 3}, {"loss": 2, "lr": 1})
        {'loss': 3, 'lr': 1}
    """
    last: dict[str, int] = {}
    for steps in found:
        last |= {name: max(step, last.get(name, -1)) for name, step in steps.items()}
    return last


def _as_saved(record: tuple[LogTime, Mapping[str, Any]]) -> dict[str, Any]:
    moment, values = record
    return {"time": moment.timestamp, "clock": moment.clock, "values": dict(values)}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    parent, _, _ = package.rpartition(".")
    try:
        return (not parent or is_installed(parent)) and find_spec(package) is not None
    except (ImportError, ValueError):
        return False


_TOO_LONG = ("modules", "command")  # one entry for each layer; the arguments of the script


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested hyperparameters to plain values, named like paths.

    Example:
        >>> from composable.loggers._back_end import flatten
        >>> flatten({"lr": 0.1, "options": {"compile": False}, "optimizers": ["SGD"]})
        {'lr': 0.1, 'options/compile': False, 'optimizers/0': 'SGD'}
    """
    flat: dict[str, Any] = {}
    _flatten({n: v for n, v in values.items() if n not in _TOO_LONG}, "", flat)
    return flat


def _flatten(value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(inner, f"{path}/{name}" if path else str(name), flat)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _flatten(inner, f"{path}/{i}", flat)
    else:
        plain = value is None or isinstance(value, (bool, int, float, str))
        flat[path] = value if plain else str(value)


def save_model(model: torch.nn.Module, path: Path) -> None:
    """Write the parameters and buffers of a model to a file of safetensors."""
    tensors = {n: one for n, one in model.state_dict().items() if isinstance(one, Tensor)}
    with open_to_write(path, "xb") as file:
        write_tensors(file.write, tensors)
