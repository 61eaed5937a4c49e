"""Print metrics to the console."""

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from composable._support.printable import brief
from composable._support.table import format_table
from composable.core.destination import LoggerDestination
from composable.core.logger import Columns, Logger, Rows, to_numbers
from composable.core.state import State
from composable.core.time import TimeLike, Timestamp, TimeUnit, check_length, crossed
from composable.loggers._records import matching, metric_patterns


class ConsoleLogger(LoggerDestination):
    """Prints the latest metrics every `log_interval`, and after every evaluation.

    Texts and tables are printed at once.

    Args:
        log_interval: When to print: "10ba", "1ep" or "0.1dur".
        metrics: Names of the metrics to print, or patterns with wildcards. Default: all.
        stream: The stream to print to. Default: standard error.

    Raises:
        ValueError: `log_interval` is not a valid interval.
        TypeError: `metrics` is not a list of strings.

    Example:
        >>> import sys
        >>> from composable.loggers import ConsoleLogger
        >>> logger = ConsoleLogger("10ba", stream=sys.stdout)
    """

    def __init__(
        self,
        log_interval: TimeLike = "1ep",
        *,
        metrics: Sequence[str] = ("*",),
        stream: IO[str] | None = None,
    ) -> None:
        units = TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.DURATION
        self._interval = check_length("log_interval", log_interval, units)
        self._stream, self._metrics = stream, metric_patterns(metrics)
        self._latest: dict[str, Any] = {}
        self._before: State | None = None

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Keep the latest value of each metric."""
        self._latest |= matching(metrics, self._metrics)

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Print texts."""
        for name, text in texts.items():
            self._write(f"{_place(timestamp)}  {name}:\n{text}")

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Print a table."""
        table = format_table(([brief(value) for value in row] for row in rows), columns)
        self._write(f"{_place(timestamp)}  {name}:\n{table}")

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the first interval."""
        self._before = state

    def log(self, state: State, logger: Logger) -> None:
        """Print if the interval has passed."""
        before, self._before = self._before, state
        if before is not None and crossed(before, state, self._interval):
            self._print(state)

    epoch_end = log  # the end of an epoch of unknown length is known now

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Print the results of the evaluation."""
        self._print(state)

    eval_standalone_end = eval_after_all

    def close(self) -> None:
        """Release the state of the run."""
        self._before = None

    def _print(self, state: State) -> None:
        (numbers,) = to_numbers([self._latest])
        self._latest = {}
        if numbers:
            text = "  ".join(f"{name} {brief(value)}" for name, value in numbers.items())
            self._write(f"{_place(state.timestamp)}  {text}")

    def _write(self, text: str) -> None:
        """Print lines, above the bars of tqdm if there are any."""
        out, tqdm = self._stream or sys.stderr, sys.modules.get("tqdm.std")
        if tqdm is None:
            print(text, file=out)
        else:
            tqdm.tqdm.write(text, file=out)


def _place(now: Timestamp) -> str:
    return f"[epoch {now.epoch}, batch {now.batch}]"
