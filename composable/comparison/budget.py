"""What trials cost, estimated from a short trial of each arm, and how much fits a budget."""

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import attrs

from composable.comparison.records import Settings, Trial, TrialResult
from composable.core.time import Time, TimeUnit

_PIECE = r"([0-9]+(?:\.[0-9]+)?)\s*([hms])(?:ours?|in|ec)?\s*"
_SECONDS = {"h": 3600, "m": 60, "s": 1}
_PART = 8
_FEWEST = 20


class BudgetError(ValueError):
    """A budget is too short for the smallest comparison that gives a verdict."""


def parse_budget(budget: Any) -> float:
    """Return the seconds of a budget: "10min", "2h", "1h30m", "90s", or a number of seconds.

    Infinity for None.

    Raises:
        TypeError: It is of the wrong type.
        ValueError: It cannot be read, or is not positive.

    Example:
        >>> from composable.comparison.budget import parse_budget
        >>> parse_budget("10min"), parse_budget("1h30m"), parse_budget(20)
        (600.0, 5400.0, 20.0)
    """
    if budget is None:
        return math.inf
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise TypeError(f"budget={budget!r} must be a time such as '10min', or seconds.")
    if isinstance(budget, str):
        known = re.fullmatch(f"({_PIECE})+", budget.strip())
        pieces = re.findall(_PIECE, budget) if known else []
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in pieces)
    else:
        seconds = float(budget)
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"budget={budget!r} must be a time such as '10min', '2h' or '1h30m', above 0."
        )
    return seconds


# --- lengths ---


def count_batches(duration: str, epoch_length: int | None) -> float | None:
    """Return the number of batches of a run; None if it is not known."""
    time = Time.parse(duration)
    each = {TimeUnit.BATCH: 1, TimeUnit.EPOCH: epoch_length}.get(time.unit)
    return None if each is None else float(time.value * each)


def run_length(duration: str, epoch_length: int | None) -> float:
    """Return the number of batches of a run, or its length in its own unit."""
    batches = count_batches(duration, epoch_length)
    return float(Time.parse(duration).value) if batches is None else batches


def short_trials(
    tried: Mapping[str, Sequence[Settings]],
    shortest: Mapping[str, str],
    seeds: Mapping[str, Sequence[int]],
    epoch_length: int | None,
) -> list[Trial]:
    """Return a trial of an eighth of the shortest schedule of each arm, at least 20 batches."""

    def shortened(duration: str) -> str:
        length = count_batches(duration, epoch_length)
        if length is None:
            return duration
        return f"{int(min(length, max(length // _PART, _FEWEST)))}ba"

    return [
        Trial(arm, one[0], shortened(shortest[arm]), seeds[arm][0], "tuning")
        for arm, one in tried.items()
    ]


def equal_seconds(duration: str, relative_rate: float, epoch_length: int | None) -> str:
    """Return the duration in which an arm trains for the seconds of the baseline.

    The ratio of step costs is rounded to a power of the fourth root of 2, and that of up to a fifth
    to 1: a small change of the measured cost leaves trials as they are.
    """
    time, steps = Time.parse(duration), round(4 * math.log2(relative_rate))
    if abs(steps) < 2 or time.unit in (TimeUnit.SECOND, TimeUnit.ITERATION):
        return duration
    unit = time.unit if count_batches(duration, epoch_length) is None else TimeUnit.BATCH
    length = run_length(duration, epoch_length)
    return str(Time(max(1, round(length / 2 ** (steps / 4))), unit))


# --- estimates ---


@attrs.frozen
class Estimates:
    """The cost of the trials of each arm, from a short one that ran."""

    ran: Mapping[str, TrialResult]
    epoch_length: int | None

    @classmethod
    def of(cls, results: Iterable[TrialResult], epoch_length: int | None) -> "Estimates":
        """Return the estimates that results of short trials give; failed ones are skipped."""
        ended = (one for one in results if one.outcome in ("finished", "diverged") and one.batches)
        return cls({one.trial.arm: one for one in ended}, epoch_length)

    def rate(self, arm: str) -> float:
        """Return the seconds of a unit of length: of a batch, where these can be counted."""
        one = self.ran[arm]
        length = run_length(one.trial.duration, self.epoch_length)
        if one.outcome == "diverged" and count_batches(one.trial.duration, self.epoch_length):
            length = min(length, one.batches)
        return one.seconds.training / length

    def seconds(self, trial: Trial) -> float:
        """Return the seconds of a trial; an arm without an estimate costs nothing: it fails."""
        if trial.arm not in self.ran:
            return 0.0
        one, length = self.ran[trial.arm], run_length(trial.duration, self.epoch_length)
        evaluations = max(1.0, length / self.epoch_length if self.epoch_length else 1.0)
        return (
            one.seconds.setup
            + one.seconds.warmup
            + self.rate(trial.arm) * length
            + one.seconds.evaluation / max(len(one.curve), 1) * evaluations
        )

    def relative_rate(self, arm: str, baseline: str) -> float:
        """Return the step cost of an arm divided by that of the baseline; 1 if unknown."""
        rates = [self.rate(one) for one in (arm, baseline) if one in self.ran]
        return rates[0] / rates[1] if len(rates) == 2 and all(rates) else 1.0


def elapsed_seconds(trials: Iterable[float], workers: int) -> float:
    """Return how long trials take that start in their order as soon as a worker is free."""
    ends = [0.0] * workers
    for seconds in trials:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


# --- how much fits ---


@attrs.frozen
class Rung:
    """A round of tuning: the remaining configurations are trained for one duration."""

    duration: str
    count: int
    """The number of configurations of each arm that enter it."""


class Extent(NamedTuple):
    """How much a comparison trains."""

    configurations: int
    """Of each arm; 1 if nothing is tuned."""
    rungs: tuple[Rung, ...]
    seeds: int
    schedules: int
    """Of each arm, the shortest ones."""


def halving(count: int, durations: Sequence[str]) -> tuple[Rung, ...]:
    """Return rounds of which each keeps the better half of the configurations.

    The last round has the longest duration, and the earlier ones the next shorter.
    """
    if count < 2:
        return ()
    used = durations[-math.ceil(math.log2(count)) :]
    return tuple(Rung(one, math.ceil(count / 2**at)) for at, one in enumerate(used))


def full_size(configurations: int, seeds: int, durations: Sequence[str], most: int) -> Extent:
    """Return the size without a budget: every configuration for the longest duration."""
    rungs = (Rung(durations[-1], configurations),) if configurations > 1 else ()
    return Extent(configurations, rungs, seeds, most)


def fit_budget(
    full: Extent, durations: Sequence[str], seconds: Callable[[Extent], float], left: float
) -> Extent:
    """Return the largest size that fits, by the product of its numbers and then by its seeds.

    At least two configurations are tried, and three seeds and two schedules are run, where there
    are as many: the smallest size that gives a verdict, which is returned if none fits.
    """
    pairs = ((full.configurations, 2), (full.seeds, 3), (full.schedules, 2))
    counts = (range(most, min(most, least) - 1, -1) for most, least in pairs)
    sizes = [full] + [
        Extent(configurations, halving(configurations, durations[:schedules]), seeds, schedules)
        for configurations, seeds, schedules in product(*counts)
    ]
    fitting = [size for size in sizes if seconds(size) <= left]
    # The first of equal ones is kept, and the full size is first.
    return max(
        fitting or sizes[-1:],
        key=lambda one: (one.configurations * one.seeds * one.schedules, one.seeds),
    )
