"""The lengths of trials, and the step costs of arms, from a short trial of each."""

import math
from collections.abc import Iterable, Mapping

import attrs

from composable.comparison.records import TrialResult
from composable.core.time import Time, TimeUnit

_PART = 8
_FEWEST = 20


# --- lengths ---


def count_batches(duration: str, epoch_length: int | None) -> float | None:
    """Return the number of batches of a run; None if it is not known."""
    time = Time.parse(duration)
    each = {TimeUnit.BATCH: 1, TimeUnit.EPOCH: epoch_length}.get(time.unit)
    return None if each is None else float(time.value * each)


def run_length(duration: str, epoch_length: int | None) -> float:
    """Return the number of batches of a run, or its length in the unit of `duration`."""
    batches = count_batches(duration, epoch_length)
    return float(Time.parse(duration).value) if batches is None else batches


def shortened(duration: str, epoch_length: int | None) -> str:
    """Return an eighth of a duration, at least 20 batches, where these can be counted."""
    length = count_batches(duration, epoch_length)
    if length is None:
        return duration
    return f"{int(min(length, max(length // _PART, _FEWEST)))}ba"


def equal_seconds(duration: str, relative_rate: float, epoch_length: int | None) -> str:
    """Return the duration in which an arm trains for the seconds of the baseline.

    The ratio of step costs is rounded to a power of the fourth root of 2; a difference of up to a
    fifth counts as 1: a small change of the measured cost leaves trials as they are.
    """
    time, steps = Time.parse(duration), round(4 * math.log2(relative_rate))
    if abs(steps) < 2 or time.unit in (TimeUnit.SECOND, TimeUnit.ITERATION):
        return duration
    unit = time.unit if count_batches(duration, epoch_length) is None else TimeUnit.BATCH
    length = run_length(duration, epoch_length)
    return str(Time(max(1, round(length / 2 ** (steps / 4))), unit))


# --- costs ---


@attrs.frozen
class Rates:
    """The step costs of arms, from a short trial of each that ran."""

    ran: Mapping[str, TrialResult]
    epoch_length: int | None

    @classmethod
    def of(cls, results: Iterable[TrialResult], epoch_length: int | None) -> "Rates":
        """Return the step costs that results of short trials give; failed ones are skipped."""
        ended = (one for one in results if one.outcome in ("finished", "diverged") and one.batches)
        return cls({result.trial.arm: result for result in ended}, epoch_length)

    def rate(self, arm: str) -> float:
        """Return the seconds of a unit of length: of a batch, where these can be counted."""
        one = self.ran[arm]
        length = run_length(one.trial.duration, self.epoch_length)
        if one.outcome == "diverged" and count_batches(one.trial.duration, self.epoch_length):
            length = min(length, one.batches)
        return one.seconds.training / length

    def relative_rate(self, arm: str, baseline: str) -> float:
        """Return the step cost of an arm divided by the baseline's; 1 if unknown."""
        rates = [self.rate(one) for one in (arm, baseline) if one in self.ran]
        return rates[0] / rates[1] if len(rates) == 2 and all(rates) else 1.0
