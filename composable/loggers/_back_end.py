"""The base class of the loggers that write through another package."""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor

from composable.checkpoint._safetensors import write_tensors
from composable.core._warnings import warn_user
from composable.core.destination import LoggerDestination
from composable.core.logger import UnsupportedLogError, to_numbers
from composable.core.time import Timestamp
from composable.distributed import Processes
from composable.functional._checks import check_count
from composable.loggers._histograms import Histogram
from composable.loggers._images import figure_png, png, to_pixels

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = [
    "BackEndLogger",
    "LoggerFailureWarning",
    "Moment",
    "flatten",
    "is_installed",
    "save_model",
]

_MOST_FAILURES = 3


class LoggerFailureWarning(UserWarning):
    """A logger could not write; the run continues without these records."""


@attrs.frozen
class Moment:
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

    `state_dict` holds what `_run_state` returns, and the last step of every name. A resumed run
    opens the same run of the back end, and drops the records that this already has.

    Args:
        flush_interval: Number of records of metrics to buffer, at least 1. They are also written
            at the end of every epoch, evaluation and call, and before a checkpoint.
    """

    package: ClassVar[str] = ""
    """The package that it imports on use."""
    extra: ClassVar[str] = ""
    """The extra of composable that installs the package."""

    def __init__(self, *, flush_interval: int = 100) -> None:
        check_count("flush_interval", flush_interval, 1)
        if self.package and not is_installed(self.package):
            raise ModuleNotFoundError(
                f"{type(self).__name__} requires the package {self.package}, which is not "
                f'installed: pip install "composable[{self.extra}]".'
            )
        self.flush_interval = flush_interval
        self._pending: list[tuple[Moment, Mapping[str, Any]]] = []
        self._is_open = self._is_off = self._has_warned = self._is_disabled = False
        self._num_failures = 0
        self._saved_run: Any = None  # of the checkpoint, until it is opened
        self._run: Any = None
        self._saved_steps: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._present: Mapping[str, int] = {}

    # --- for subclasses ---

    def _open(self, saved: Any) -> None:
        """Open the back end: a new run, or the one that `_run_state` described."""

    def _steps(self) -> Mapping[str, int]:
        """Return the last step of each name that the back end has, after a resume."""
        names = {**self._saved_steps, **self._written}
        return {n: max(self._saved_steps.get(n, -1), self._written.get(n, -1)) for n in names}

    def _run_state(self) -> Any:
        """Return what identifies the run, as plain containers."""
        return None

    def _release(self) -> None:
        """Close what is open; `_open` opens it again."""

    def _flush(self) -> None:
        """Write what the package buffers."""

    def _write_metrics(self, records: Sequence[tuple[Moment, Mapping[str, Any]]]) -> None:
        """Write records of numbers, strings and None, oldest first."""

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write plain values by name."""

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: Moment) -> None:
        """Write pictures in the format PNG."""
        raise UnsupportedLogError

    def _write_histogram(self, name: str, histogram: Histogram, moment: Moment) -> None:
        raise UnsupportedLogError

    def _write_text(self, name: str, text: str, moment: Moment) -> None:
        raise UnsupportedLogError

    def _write_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], moment: Moment
    ) -> None:
        raise UnsupportedLogError

    def _write_artifact(self, name: str, path: Path) -> None:
        raise UnsupportedLogError

    # --- logged values ---

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Buffer metrics, and write them if the buffer is full."""
        if self._writes:
            self._pending.append((Moment(timestamp), metrics))
            if len(self._pending) >= self.flush_interval:
                self.flush()

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the hyperparameters."""
        self._attempt(lambda: self._write_hyperparameters(flatten(hyperparameters)))

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write images."""
        self._each(
            images,
            timestamp,
            lambda name, some, moment: self._write_images(name, list(map(png, some)), moment),
            to_pixels,
        )

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write histograms of 64 bins."""
        self._each(histograms, timestamp, self._write_histogram, Histogram.of)

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Write texts."""
        self._each(texts, timestamp, self._write_text)

    def log_table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        timestamp: Timestamp,
    ) -> None:
        """Write a table."""
        self._each(
            {name: rows},
            timestamp,
            lambda one, some, moment: self._write_table(one, columns, some, moment),
        )

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Write a figure as an image."""
        self._each(
            {name: figure},
            timestamp,
            lambda one, some, moment: self._write_images(one, [some], moment),
            figure_png,
        )

    def log_artifact(self, name: str, path: str) -> None:
        """Write a file or a folder."""
        self._attempt(lambda: self._write_artifact(name, Path(path)))

    def _each(
        self,
        values: Mapping[str, Any],
        timestamp: Timestamp,
        write: Callable[[str, Any, Moment], None],
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Write values by name, those that the back end does not have yet."""
        self.flush()  # earlier metrics first: some back ends take steps in order only
        moment = Moment(timestamp)

        def write_new() -> None:
            for name, value in values.items():
                if self._is_new(name, moment.step):
                    write(name, convert(value), moment)
                    self._written[name] = moment.step

        self._attempt(write_new)

    # --- when it is written ---

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Open the back end, also one that had failed."""
        self._num_failures, self._is_off = 0, False
        self._attempt(lambda: None)

    def epoch_end(self, state: "State", logger: "Logger") -> None:
        """Write the buffered metrics."""
        self.flush()

    def eval_after_all(self, state: "State", logger: "Logger") -> None:
        """Write the buffered metrics, results included."""
        self.flush()

    def flush(self) -> None:
        """Write the buffered metrics."""
        if self._pending:
            records, self._pending = self._pending, []
            self._attempt(lambda: self._write_records(records))

    def _write_records(self, records: Sequence[tuple[Moment, Mapping[str, Any]]]) -> None:
        numbers = to_numbers(metrics for _, metrics in records)
        new = [
            (moment, {n: v for n, v in values.items() if self._is_new(n, moment.step)})
            for (moment, _), values in zip(records, numbers, strict=True)
        ]
        self._write_metrics([(moment, values) for moment, values in new if values])
        for moment, values in new:
            self._written.update(dict.fromkeys(values, moment.step))

    def _is_new(self, name: str, step: int) -> bool:
        return step > self._present.get(name, -1)

    def close(self) -> None:
        """Write the buffered metrics, and release files; the next write opens them again."""
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
        try:
            if not self._is_open:
                self._open(self._saved_run)
                if self._saved_run is not None:
                    self._present, self._saved_run = self._steps(), None
                self._is_open = True
            action()
            self._num_failures = 0
        except UnsupportedLogError:
            raise
        except Exception as error:  # a package may raise anything
            self._num_failures += 1
            self._is_off = not self._is_open or self._num_failures >= _MOST_FAILURES
            if not self._has_warned:
                self._has_warned = True
                more = "Nothing more is logged there" if self._is_off else "Records are missing"
                warn_user(
                    f"{self.name} failed: {type(error).__name__}: {error}. {more}, and the run "
                    "continues; later failures of this logger are not reported.",
                    LoggerFailureWarning,
                )

    # --- resume ---

    def state_dict(self) -> dict[str, Any]:
        """Write the buffered metrics, and return the id of the run and its last steps."""
        self.flush()
        if self._is_open:
            self._attempt(self._flush)
            self._attempt(self._remember_run)
        run = self._run if self._saved_run is None else self._saved_run
        return {"run": run, "steps": {**self._saved_steps, **self._written}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the id of the run, which the next write opens.

        Raises:
            ValueError: It is not a state of this class.
        """
        if state.keys() != {"run", "steps"} or not isinstance(state["steps"], Mapping):
            raise ValueError(
                f"{self.name} was given the state {sorted(state)}, and its own has ['run', "
                "'steps']: was it saved by another callback?"
            )
        self._pending = []
        self._close()
        self._saved_run = state["run"]
        self._saved_steps = {str(n): int(step) for n, step in state["steps"].items()}


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
    with path.open("wb") as file:
        write_tensors(file.write, tensors)
