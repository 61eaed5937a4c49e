"""The base class of the loggers that write through another package."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import attrs
from torch import Tensor

from composable._support.checks import check_count
from composable._support.extras import needs
from composable._support.warn import warn_user
from composable.core.destination import LoggerDestination
from composable.core.logger import Columns, Logger, Rows, UnsupportedLogError, to_numbers
from composable.core.state import State
from composable.core.time import Timestamp
from composable.distributed import Processes
from composable.loggers._histograms import Histogram
from composable.loggers._images import figure_png, png, to_pixels
from composable.loggers._records import Records, pack_records, unpack_records
from composable.storage.folders import as_folder

_MOST_FAILURES = 3
# More than a package has in its buffers: a second of rows, or 32 KiB.
_MOST_RECENT = 2_000


class LoggerFailureWarning(UserWarning):
    """A logger could not write; the run continues without these records."""


@attrs.frozen
class LogTime:
    """When something was logged: the time of the run, and the clock in seconds."""

    timestamp: Timestamp
    clock: float = attrs.field(factory=time.time)

    @property
    def step(self) -> int:
        """The number of batches trained: the axis of every chart."""
        return self.timestamp.batch


_Record: TypeAlias = tuple[LogTime, Mapping[str, Any]]
_Write: TypeAlias = Callable[[list[_Record]], None]


class BackEndLogger(LoggerDestination):
    """Queues logged values, and writes them to a back end on the main process only.

    The back end is closed or open, and all logged values go into one queue. Writing the
    queue opens the back end; `close` writes the queue and closes it.

    A subclass opens the back end in `_open` and writes in the methods `_write_*`; of those that it
    does not define, the `Logger` warns. An error in any of them never ends the run: it becomes one
    `LoggerFailureWarning`. After three failures in a row nothing is written until the next `fit`.

    `state_dict` holds what `_run_state` returns. A resumed run opens the same run of the back end,
    and writes no step that the back end has. Offline, a package brings rows to disk after it takes
    them, so a checkpoint also has the most recent rows, and a resume writes those that a killed
    process lost. The file of a `JSONLinesLogger` cannot replace these rows: not every run has one,
    and it has texts in place of numbers that are not finite.

    Args:
        flush_interval: Length of the queue at which it is written, at least 1. It is also written
            at the end of every epoch, evaluation and call, and before a checkpoint.
    """

    package: ClassVar[str] = ""
    """The package that it imports on use."""
    extra: ClassVar[str] = ""
    """The extra of composable that installs the package."""
    _is_disabled = False
    _is_offline = False
    """Whether the package writes to local files, which it does later than it takes records."""

    def __init__(self, *, flush_interval: int = 100) -> None:
        check_count("flush_interval", flush_interval, 1)
        with needs(type(self).__name__, self.extra):
            if self.package and not is_installed(self.package):
                raise ModuleNotFoundError(name=self.package)
        self.flush_interval = flush_interval
        self._queue: list[tuple[_Write, _Record]] = []
        self._is_open = self._has_warned = False
        self._num_failures = 0
        self._run: Any = None  # what identifies it
        self._resumes = False  # whether to open the run of a checkpoint
        self._written: dict[str, int] = {}
        self._present: Mapping[str, int] = {}  # of a resumed run: what not to write again
        self._recent: deque[_Record] = deque(maxlen=_MOST_RECENT)
        self._checkpoints: Path | None = None
        """The folder of checkpoints, of which the hyperparameters tell."""

    # --- for subclasses ---

    def _open(self, saved: Any) -> None:
        """Open the back end: a new run, or the one that `_run_state` described."""

    def _steps(self) -> Mapping[str, int]:
        """Return the last step of each name that the back end has when a run resumes."""
        return {}

    def _run_state(self) -> Any:
        """Return what identifies the run, as plain containers."""
        return None

    def _release(self) -> None:
        """Close what is open; `_open` opens it again."""

    def _flush(self) -> None:
        """Write what the package buffers."""

    def _write_metrics(self, records: Sequence[_Record]) -> None:
        """Write records of numbers, strings and None, oldest first."""

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write plain values by name."""

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        """Write pictures in the format PNG."""

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None: ...

    def _write_text(self, name: str, text: str, moment: LogTime) -> None: ...

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        """Write a table, whose rows are lists."""

    def _write_artifact(self, name: str, path: Path) -> None: ...

    # --- logged values ---

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Queue metrics, and write the queue if it is long."""
        if self._writes:
            self._queue.append((self._write_records, (LogTime(timestamp), metrics)))
            if len(self._queue) >= self.flush_interval:
                self.flush()

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the hyperparameters."""
        flat = flatten(hyperparameters)
        folder = flat.get("save_folder")
        self._checkpoints = as_folder("save_folder", folder) if isinstance(folder, str) else None
        self._enqueue(lambda _: self._write_hyperparameters(flat))

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write images."""
        self._each(images, timestamp, self._write_images, lambda some: [*map(png, to_pixels(some))])

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write histograms of 64 bins."""
        self._each(histograms, timestamp, self._write_histogram, Histogram.of)

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Write texts."""
        self._each(texts, timestamp, self._write_text, str)

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Write a table."""
        table = [*columns], [list(row) for row in rows]  # the caller may change its own
        self._each({name: table}, timestamp, self._write_table)

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Write a figure as an image."""
        self._each({name: figure}, timestamp, self._write_images, lambda one: [figure_png(one)])

    def log_artifact(self, name: str, path: str) -> None:
        """Write a file or a folder."""
        self._check_support(self._write_artifact)
        self._enqueue(lambda _: self._write_artifact(name, Path(path)))

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
        self._check_support(write)
        if self._writes:
            with self._warning():  # now, since the values may change before a back end is open
                converted = {name: convert(value) for name, value in values.items()}
                self._enqueue(partial(self._write_each, write), (LogTime(timestamp), converted))

    def _write_each(
        self, write: Callable[[str, Any, LogTime], None], records: Sequence[_Record]
    ) -> None:
        for moment, values in records:
            for name, value in values.items():
                if self._is_new(name, moment.step):
                    write(name, value, moment)
                    self._written[name] = moment.step

    def _check_support(self, write: Callable[..., None]) -> None:
        is_base = getattr(type(self), write.__name__) is getattr(BackEndLogger, write.__name__)
        if self._writes and is_base:
            raise UnsupportedLogError

    # --- the queue ---

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the back end, also one that had failed."""
        self._num_failures = 0
        self._attempt(lambda: None)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write the queue."""
        self.flush()

    eval_after_all = epoch_end

    def _enqueue(self, write: _Write, record: _Record = (LogTime(Timestamp()), {})) -> None:
        self._queue.append((write, record))
        self.flush()

    def flush(self) -> None:
        """Write the queue in order, metrics that follow one another together."""
        queue, self._queue = self._queue, []
        for write, found in groupby(queue, itemgetter(0)):
            self._attempt(partial(write, [record for _, record in found]))

    def _write_records(self, records: Sequence[_Record]) -> None:
        numbers = to_numbers(metrics for _, metrics in records)
        new = [
            (moment, found)
            for (moment, _), values in zip(records, numbers, strict=True)
            if (found := {n: v for n, v in values.items() if self._is_new(n, moment.step)})
        ]
        self._write_metrics(new)
        self._recent.extend(new)
        for moment, values in new:
            self._written.update(dict.fromkeys(values, moment.step))

    def _is_new(self, name: str, step: int) -> bool:
        return step > self._present.get(name, -1)

    # --- open and closed ---

    @property
    def _writes(self) -> bool:
        is_off = self._is_disabled or self._num_failures >= _MOST_FAILURES
        return not is_off and Processes.current().is_main

    def _attempt(self, action: Callable[[], None]) -> None:
        """Open the back end and do something; an error becomes a warning."""
        if self._writes:
            with self._warning():
                if not self._is_open:
                    self._open_run()
                action()
                self._num_failures = 0

    def _open_run(self) -> None:
        self._num_failures = _MOST_FAILURES  # unless it opens
        self._open(self._run if self._resumes else None)
        self._note_run()
        if self._resumes:
            self._present, self._resumes = self._steps(), False
        self._num_failures, self._is_open = 0, True

    def _sync(self) -> None:
        """Write what the package buffers, and note the run."""
        if self._is_open:
            self._attempt(self._flush)
            self._attempt(self._note_run)

    def _note_run(self) -> None:
        self._run = self._run_state()

    def close(self) -> None:
        """Write the queue, and release files; the next write opens them again."""
        self.flush()
        if self._is_open:
            self._attempt(self._release)
            self._attempt(self._note_run)
            self._is_open = False

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Turn an error into a warning, the first time."""
        try:
            yield
        except Exception as error:  # a package may raise anything
            self._num_failures += 1
            if not self._has_warned:
                self._has_warned = True
                is_off = self._num_failures >= _MOST_FAILURES
                more = "Nothing more is logged there" if is_off else "Records are missing"
                warn_user(
                    f"{self.name} failed: {type(error).__name__}: {error}. {more}, and the run "
                    "continues; later failures of this logger are not reported.",
                    LoggerFailureWarning,
                )

    # --- resume ---

    def run_entries(self) -> Mapping[str, Any]:
        """Return what identifies the open run, or None if none is open."""
        self._sync()
        return {"logger_runs": self._run if self._is_open else None}

    def continue_run(self, entries: Mapping[str, Any]) -> None:
        """Continue the run of the back end that the killed run had begun."""
        self._resume(entries.get("logger_runs"))

    def state_dict(self) -> dict[str, Any]:
        """Write the queue, and return what identifies the run, and the most recent rows."""
        self.flush()
        self._sync()
        rows = [(moment.timestamp, values) for moment, values in self._recent]
        return {"run": self._run, "recent": pack_records(rows) if self._is_offline else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what identifies the run, which the next write opens.

        Raises:
            ValueError: It is not a state of this class.
        """
        if state.keys() != {"run", "recent"}:
            raise ValueError(
                f"{self.name} was given the state {sorted(state)}, and its own has ['recent', "
                "'run']: was it saved by another callback?"
            )
        recent = state["recent"]
        self._resume(state["run"], () if recent is None else unpack_records(recent))

    def _resume(self, run: Any, recent: Records = ()) -> None:
        self._queue = []
        self.close()
        self._run, self._resumes = run, run is not None
        rows = [(LogTime(timestamp), values) for timestamp, values in recent]
        self._queue.extend((self._write_records, row) for row in rows)


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


class HostedRunLogger(BackEndLogger):
    """A logger whose back end has a run that stays open between calls, until `finish`."""

    _ends_by: ClassVar[str] = "finish"
    """The method of the run that ends it."""
    run: Any = None
    """The run of the package, or None before the first record."""

    def _begin(self, saved: Any) -> bool:
        """Set `run`, and return whether it is not the user's own."""
        raise NotImplementedError

    def _open(self, saved: Any) -> None:
        if self.run is None and self._begin(saved):
            end = getattr(self.run, self._ends_by)
            weakref.finalize(self, end).atexit = False  # the package does it then

    def finish(self) -> None:
        """End the run of the package; a later record resumes it."""
        self.close()
        run, self.run = self.run, None
        if run is not None:
            with self._warning():
                getattr(run, self._ends_by)()


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
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
    return dict(_leaves({n: v for n, v in values.items() if n not in _TOO_LONG}, ()))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Mapping, list, tuple)):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(inner, (*path, str(name)))
    else:
        plain = value is None or isinstance(value, (bool, int, float, str))
        yield "/".join(path), value if plain else str(value)
