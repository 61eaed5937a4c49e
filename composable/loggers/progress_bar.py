"""Show the progress of training, evaluation and prediction."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import IO, Any

from composable._support.checks import check_one_of, check_range
from composable.core.destination import LoggerDestination
from composable.core.logger import Logger, to_numbers
from composable.core.state import State
from composable.core.time import Time, Timestamp, TimeUnit, progress
from composable.distributed import Processes
from composable.loggers._records import matching, metric_patterns

_BARS = ("train", "eval", "predict")
_METRICS = ("loss/train", "metrics/*")
_WITHOUT_METRICS = 62  # characters: the epoch, the bar, the counts and the times
_PAUSES = {"terminal": 0.1, "notebook": 0.5, "lines": 10.0}
_COUNTS = "[{elapsed}<{remaining}, {rate_fmt}{postfix}]"
_FORMAT_WITH_TOTAL = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} " + _COUNTS
_FORMAT = "{desc}: {n:.0f} {unit} [{elapsed}, {rate_fmt}{postfix}]"


class ProgressBarLogger(LoggerDestination):
    """Shows the progress, the remaining time, the loss and the last evaluation results.

    Training has one bar, from its first batch to its last. An evaluation during training has a
    separate bar below, which disappears at its end; `Trainer.eval` and `Trainer.predict` have one
    that stays. The length of an evaluation is known from the second time on. Where there is neither
    a terminal nor a notebook, such as in a file, lines of text replace the bars.

    The values are copied from the device when a bar is drawn, every `refresh_seconds`, and not at
    every step. With several processes, rank 0 draws.

    Args:
        bars: What has a bar: some of "train", "eval" and "predict".
        metrics: Names of the metrics to show, or patterns with wildcards. Default: the training
            loss and all results of evaluations.
        style: "bar" or "lines". Default: bars on a terminal and in a notebook, lines elsewhere.
        stream: The stream to draw on. Default: standard error.
        refresh_seconds: The minimum time between two updates. Default: 0.1 on a terminal, 0.5 in a
            notebook, and 10 for lines.

    Raises:
        ValueError: An argument has an invalid value.
        TypeError: `metrics` is not a list of strings.

    Example:
        >>> import sys
        >>> from composable.loggers import ProgressBarLogger
        >>> bar = ProgressBarLogger(bars=["train"], metrics=["loss/train", "lr"], stream=sys.stdout)
    """

    drops_silently = True  # it is on by default, and has no place for images or texts

    def __init__(
        self,
        *,
        bars: Sequence[str] = _BARS,
        metrics: Sequence[str] = _METRICS,
        style: str | None = None,
        stream: IO[str] | None = None,
        refresh_seconds: float | None = None,
    ) -> None:
        if isinstance(bars, str) or not isinstance(bars, Sequence):
            raise TypeError(f"bars={bars!r} must be a list of some of {', '.join(_BARS)}.")
        for i, bar in enumerate(bars):
            check_one_of(f"bars[{i}]", bar, _BARS)
        if style is not None:
            check_one_of("style", style, ("bar", "lines"))
        if refresh_seconds is not None:
            check_range("refresh_seconds", refresh_seconds, 0)
        self._bars, self._metrics = frozenset(bars), metric_patterns(metrics)
        self._style, self._stream, self._refresh_seconds = style, stream, refresh_seconds
        self._latest: dict[str, Any] = {}
        self._bar: Any = None
        """The bar of training."""
        self._inner: Any = None
        """The bar of an evaluation or a prediction."""
        self._kind = ""
        self._count = self._index = 0
        self._lengths: dict[tuple[bool, int], int] = {}
        self._next_drawing = 0.0
        self._hidden, self._place = False, ""

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Keep the latest values of the metrics to show."""
        for name, value in matching(metrics, self._metrics).items():
            self._latest[name.removeprefix("metrics/")] = value

    # --- training ---

    def fit_start(self, state: State, logger: Logger) -> None:
        """Draw the bar."""
        self._start()
        if "train" not in self._bars or self._hidden:
            return
        total, unit = _total(state)
        self._bar = self._open(_place(state), float(total), unit, float(_done(state)))
        self._wait()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the bar if it is due."""
        if time.monotonic() >= self._next_drawing:
            self._draw_training(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Update the bar for the last time."""
        self._draw_training(state)

    def _draw_training(self, state: State) -> None:
        if self._bar is not None:
            self._bar.set_description_str(_place(state), refresh=False)
            self._draw(self._bar, min(float(_done(state)), float(_total(state)[0])))

    # --- evaluation and prediction ---

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Count the evaluators from the first."""
        self._index = -1

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """Count the evaluators from the first, and forget earlier results."""
        self._index = -1
        if self._bar is None:
            self._start()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Start to count the batches of an evaluator."""
        self._finish()
        self._index += 1
        self._begin("eval")

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Count a batch, and update the bar if it is due."""
        self._advance(self._lengths.get((self._bar is None, self._index)))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Note the length of the evaluation."""
        self._lengths[self._bar is None, self._index] = self._count

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Remove the bar, and make an update of the training bar due, to show the results."""
        self._finish()
        self._next_drawing = 0.0

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Update the bar for the last time."""
        self._finish()

    def predict_start(self, state: State, logger: Logger) -> None:
        """Start to count the batches."""
        if self._bar is None:
            self._start()
        self._begin("predict")

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Count a batch, and update the bar if it is due."""
        self._advance(None)

    predict_end = eval_standalone_end

    def _begin(self, kind: str) -> None:
        self._kind = kind if kind in self._bars and not self._hidden else ""
        self._count = 0
        if self._bar is not None:
            self._wait()  # a short evaluation needs no bar

    def _advance(self, total: int | None) -> None:
        self._count += 1
        if self._kind and time.monotonic() >= self._next_drawing:
            if self._inner is None:
                self._inner = self._open(
                    self._kind, total, "ba", self._count, self._bar is not None
                )
            self._draw(self._inner, self._count, nested=self._bar is not None)

    def _finish(self) -> None:
        """Close the bar of an evaluation or a prediction; one in training disappears."""
        if self._inner is not None:
            if self._bar is None:
                self._draw(self._inner, self._count)
            self._inner.close()
        self._inner, self._kind = None, ""

    # --- drawing ---

    def _start(self) -> None:
        """Choose the style, and forget the results of an earlier call."""
        stream = self._out
        notebook = type(stream).__module__.startswith("ipykernel")
        place = "notebook" if notebook else "terminal" if stream.isatty() else "lines"
        self._place = place
        self._lines = place == "lines" if self._style is None else self._style == "lines"
        pause = _PAUSES["lines" if self._lines else place]
        self._pause = pause if self._refresh_seconds is None else self._refresh_seconds
        self._hidden = not Processes.current().is_main
        self._latest = {}
        self._next_drawing = 0.0
        if self._lines:
            self._wait()

    def _open(
        self, description: str, total: float | None, unit: str, initial: float, nested: bool = False
    ) -> Any:
        if self._lines:
            return _Lines(self._out, description, total, unit, initial)
        from tqdm.auto import tqdm  # imported here: it is slow, because it searches for notebooks

        return tqdm(
            desc=description,
            total=total,
            initial=initial,
            unit=unit,
            file=self._out,
            position=int(nested),
            leave=not nested,
            dynamic_ncols=True,
            mininterval=0,  # this class decides when to draw, before it reads any value
            bar_format=_FORMAT if total is None else _FORMAT_WITH_TOTAL,
        )

    def _draw(self, bar: Any, done: float, nested: bool = False) -> None:
        (numbers,) = to_numbers([{} if nested else self._latest])
        shown = [f"{name}={value:.4g}" for name, value in numbers.items() if _is_number(value)]
        if self._place == "terminal" and not self._lines:
            shown = _fitting(shown, shutil.get_terminal_size().columns - _WITHOUT_METRICS)
        bar.n = done if bar.total is None else min(done, bar.total)
        bar.set_postfix_str(", ".join(shown), refresh=False)
        bar.refresh()
        self._wait()

    def _wait(self) -> None:
        self._next_drawing = time.monotonic() + self._pause

    def close(self) -> None:
        """Close the bars; the training bar stays on the screen."""
        for bar in (self._inner, self._bar):
            if bar is not None:
                bar.close()
        self._inner = self._bar = None

    @property
    def _out(self) -> IO[str]:
        return self._stream or sys.stderr


class _Lines:
    """Lines of text in the place of a bar of tqdm."""

    def __init__(
        self, stream: IO[str], description: str, total: float | None, unit: str, initial: float
    ) -> None:
        self.stream, self.description, self.unit = stream, description, unit
        self.n, self.total, self.initial = initial, total, initial
        self.postfix, self.start = "", time.monotonic()

    def set_description_str(self, description: str, refresh: bool) -> None:
        self.description = description

    def set_postfix_str(self, postfix: str, refresh: bool) -> None:
        self.postfix = postfix

    def refresh(self) -> None:
        """Write a line."""
        seconds, done = time.monotonic() - self.start, self.n - self.initial
        clock, count = _clock(seconds), f"{self.n:.0f}"
        if self.total is not None:
            left = _clock(seconds * (self.total - self.n) / done) if done > 0 else "?"
            share = 100 * self.n / self.total if self.total else 100.0
            clock, count = f"{clock}<{left}", f"{share:.0f}%, {count}/{self.total:.0f}"
        rate = f", {done / seconds:.3g} {self.unit}/s" if seconds and self.unit != "sec" else ""
        shown = f"  {self.postfix}" if self.postfix else ""
        line = f"{self.description}: {count} {self.unit} [{clock}{rate}]{shown}"
        print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Do nothing: the lines stay."""


def _fitting(texts: Sequence[str], width: int) -> list[str]:
    """Return the first texts that fit, and one at least: the bar needs the rest of the line."""
    ends = accumulate(len(text) + 2 for text in texts)
    return [
        text for i, (text, end) in enumerate(zip(texts, ends, strict=True)) if not i or end <= width
    ]


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _place(state: State) -> str:
    """Return the epoch in progress, from 1, and the batch where the length of epochs is unknown."""
    whole, now = _whole(state), state.timestamp
    ended = now.batch > 0 == now.batch_in_epoch and _done(state) >= _total(state)[0]
    epoch = now.epoch + (not ended)
    if whole.unit is not TimeUnit.EPOCH:
        return f"epoch {epoch}"
    shown = f"epoch {epoch}/{whole.value}"
    return shown if state.epoch_length is not None else f"{shown}, batch {now.batch}"


def _whole(state: State) -> Time:
    return state.max_duration or Time(0, TimeUnit.BATCH)


def _total(state: State) -> tuple[Any, str]:
    whole = _whole(state)
    in_batches = whole.unit is TimeUnit.EPOCH and state.epoch_length is not None
    return progress(state, whole)[1], "ba" if in_batches else whole.unit.value


def _done(state: State) -> Any:
    return progress(state, _whole(state))[0]
