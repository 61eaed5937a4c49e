"""Show the progress of training as a bar."""

import sys
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from composable.core.destination import LoggerDestination
from composable.core.logger import to_numbers
from composable.core.time import Time, Timestamp, TimeUnit, progress

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["ProgressBarLogger"]


class ProgressBarLogger(LoggerDestination):
    """Shows the progress, the remaining time, the loss and the last evaluation results.

    The values are copied from the device when the bar is drawn, every `refresh_seconds`, and not at
    every step.

    Args:
        stream: The stream to draw on. Default: standard error.
        refresh_seconds: The minimum time between two updates of the bar. Default: 0.1 on a
            terminal and in a notebook, and 10 elsewhere, because each update is then a line of a
            log.
    """

    drops_silently = True  # it is on by default, and has no place for images or texts

    def __init__(
        self, *, stream: IO[str] | None = None, refresh_seconds: float | None = None
    ) -> None:
        self._stream = stream
        self._refresh_seconds = refresh_seconds
        self._latest: dict[str, Any] = {}
        self._bar: Any = None
        self._total: Any = None
        self._next_drawing = 0.0

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Keep the latest loss and evaluation results."""
        for name, value in metrics.items():
            if name == "loss/train" or name.startswith("metrics/"):
                self._latest[name.removeprefix("metrics/")] = value

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Draw the bar."""
        from tqdm.auto import tqdm  # imported here: it is slow, because it searches for notebooks

        stream = self._stream or sys.stderr
        seconds = self._refresh_seconds
        if seconds is None:
            seconds = 0.1 if stream.isatty() or _in_notebook(stream) else 10.0
        self._pause = seconds
        self._total, unit = _total(state)
        self._latest = {}
        self._bar = tqdm(
            total=float(self._total),
            initial=float(_done(state)),
            unit=unit,
            file=stream,
            dynamic_ncols=True,
            mininterval=0,  # this class decides when to draw, before it reads any value
            bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]",
        )
        self._next_drawing = time.monotonic() + seconds

    def batch_end(self, state: "State", logger: "Logger") -> None:
        """Update the bar if it is due."""
        if time.monotonic() >= self._next_drawing:
            self._draw(state)

    def eval_after_all(self, state: "State", logger: "Logger") -> None:
        """Make the next update due, to show the results."""
        self._next_drawing = 0.0

    def fit_end(self, state: "State", logger: "Logger") -> None:
        """Update the bar for the last time."""
        self._draw(state)

    def _draw(self, state: "State") -> None:
        if self._bar is None:
            return
        (numbers,) = to_numbers([self._latest])
        postfix = {
            name: f"{value:.4g}" for name, value in numbers.items() if isinstance(value, float)
        }
        self._bar.n = min(float(_done(state)), float(self._total))
        self._bar.set_postfix(postfix, refresh=False)
        self._bar.refresh()
        self._next_drawing = time.monotonic() + self._pause

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _in_notebook(stream: IO[str]) -> bool:
    return type(stream).__module__.startswith("ipykernel")


def _whole(state: "State") -> Time:
    return state.max_duration or Time(0, TimeUnit.BATCH)


def _total(state: "State") -> tuple[Any, str]:
    whole = _whole(state)
    in_batches = whole.unit is TimeUnit.EPOCH and state.epoch_length is not None
    return progress(state, whole)[1], "ba" if in_batches else whole.unit.value


def _done(state: "State") -> Any:
    return progress(state, _whole(state))[0]
