"""The progress of a comparison: trials, and the time left by the cost of their steps."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from composable.comparison.records import Trial, TrialResult
from composable.core.time import Time, TimeUnit

__all__ = ["Progress", "TimeLeft", "format_seconds", "length_of", "trained_length"]


def length_of(duration: str, epoch_length: int | None) -> float:
    """Return the number of batches of a run, or its length in its own unit.

    Example:
        >>> from composable.comparison.plan.progress import length_of
        >>> length_of("2ep", 50), length_of("300ba", None), length_of("2ep", None)
        (100.0, 300.0, 2.0)
    """
    length = Time.parse(duration)
    batches = epoch_length if length.unit is TimeUnit.EPOCH and epoch_length else 1
    return float(length.value * batches)


def trained_length(result: TrialResult, epoch_length: int | None) -> float:
    """Return the length that a trial has trained, in the unit of `length_of`.

    A diverged trial ends before its duration does; this is known where batches can be counted.

    Args:
        result: The trial.
        epoch_length: The batches of an epoch, if known.
    """
    length = length_of(result.trial.duration, epoch_length)
    unit = Time.parse(result.trial.duration).unit
    countable = unit is TimeUnit.BATCH or (unit is TimeUnit.EPOCH and epoch_length is not None)
    if result.outcome == "diverged" and countable:
        return min(length, float(max(result.batches, 1)))
    return length


def format_seconds(seconds: float) -> str:
    """Return a time in the largest units that matter.

    Example:
        >>> from composable.comparison.plan.progress import format_seconds
        >>> format_seconds(8.4), format_seconds(61), format_seconds(7300)
        ('8 s', '1 min', '2 h 2 min')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@attrs.define
class TimeLeft:
    """An estimate of the time that trials take.

    The set-up and the cost of training of an arm are those of its finished trials, and the means
    of the other arms before one has finished.
    """

    epoch_length: int | None
    _trials: dict[str, int] = attrs.field(factory=dict)
    _length: dict[str, float] = attrs.field(factory=dict)
    _overhead: dict[str, float] = attrs.field(factory=dict)
    _seconds: dict[str, float] = attrs.field(factory=dict)

    def learn(self, result: TrialResult) -> None:
        """Take the cost of a finished trial into account."""
        if result.outcome not in ("finished", "diverged"):
            return
        arm, parts = result.trial.arm, result.seconds
        _add(self._trials, arm, 1)
        _add(self._length, arm, trained_length(result, self.epoch_length))
        _add(self._overhead, arm, parts.setup + parts.warmup)
        _add(self._seconds, arm, parts.training + parts.evaluation)

    def seconds_of(self, trial: Trial) -> float:
        """Return the seconds of a trial; 0 before any has finished."""
        known = [trial.arm] if trial.arm in self._trials else list(self._trials)
        length = length_of(trial.duration, self.epoch_length)
        costs = [
            self._overhead[arm] / self._trials[arm]
            + self._seconds[arm] / self._length[arm] * length
            for arm in known
        ]
        return sum(costs) / max(len(costs), 1)


def _add(sums: dict[str, Any], arm: str, value: float) -> None:
    sums[arm] = sums.get(arm, 0) + value


_FROM = 0.05
"""The finished part of the work from which an estimate is shown: the first trials are short, and
the time until then includes the start of the workers."""


class Progress:
    """Shows the number of finished trials, and the time left.

    How many trials run in parallel, and at what speed, follows from what has been finished so far.

    Args:
        epoch_length: The batches of an epoch, if known.
        show: Draw a bar.
        now: A clock in seconds.
    """

    def __init__(
        self,
        epoch_length: int | None,
        *,
        show: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.time_left = TimeLeft(epoch_length)
        self.finished = 0
        self._remaining: list[Trial] = []
        self._done: list[Trial] = []
        self._now, self._begun = now, now()
        self._part: float | None = None
        self._stage_begun = self._begun
        self._bar: Any = self._make_bar() if show else None

    @staticmethod
    def _make_bar() -> Any:
        from tqdm.auto import tqdm

        # The time left of tqdm is by the number of trials, which differ in length.
        return tqdm(total=0, bar_format="{desc}: {n_fmt}/{total_fmt} trials {bar}{postfix}")

    def start(self, what: str, trials: Iterable[Trial]) -> None:
        """Begin a stage.

        Args:
            what: Its name.
            trials: All trials that remain: those of the stage and of later ones.
        """
        self._remaining, self._part = list(trials), None
        self._stage_begun = self._now()
        self._show(what)

    def advance(self, part: float) -> None:
        """Note the finished fraction of a stage that trains no trials."""
        self._part = part
        self._show()

    def finish(self, result: TrialResult, *, cached: bool = False) -> None:
        """Count a trial that has ended."""
        self.finished += 1
        if result.trial in self._remaining:
            self._remaining.remove(result.trial)
        self.time_left.learn(result)
        if not cached:
            self._done.append(result.trial)
        self._show()

    @property
    def total(self) -> int:
        """The number of trials, finished and planned."""
        return self.finished + len(self._remaining)

    @property
    def left(self) -> float | None:
        """The estimated seconds until all planned trials, or a stage without trials, have ended.

        None without a trial that remains, and before a twentieth of the work is finished.
        """
        if self._part:
            return (self._now() - self._stage_begun) * (1 - self._part) / self._part or None
        done = sum(map(self.time_left.seconds_of, self._done))
        remaining = sum(map(self.time_left.seconds_of, self._remaining))
        if not remaining or done < _FROM * (done + remaining):
            return None
        return remaining * (self._now() - self._begun) / done

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, what: str | None = None) -> None:
        if self._bar is None:
            return
        if what is not None:
            self._bar.set_description_str(what, refresh=False)
        left = self.left
        text = "" if left is None else f"about {format_seconds(left)} left"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.total, self._bar.n = self.total, self.finished
        self._bar.refresh()
