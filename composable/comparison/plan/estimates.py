"""What trials cost, estimated from one short trial of each arm."""

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from composable.comparison.plan.grids import Settings
from composable.comparison.plan.progress import length_of, trained_length
from composable.comparison.records import Trial, TrialResult
from composable.core.time import Time, TimeUnit

__all__ = ["Estimates", "equal_seconds", "short_trials"]

_PART = 8
_FEWEST = 20


def short_trials(
    tried: Mapping[str, Sequence[Settings]],
    shortest: Mapping[str, str],
    seeds: Mapping[str, Sequence[int]],
    epoch_length: int | None,
) -> list[Trial]:
    """Return one trial of each arm: an eighth of its shortest schedule, at least 20 batches.

    Where batches cannot be counted, it is the shortest schedule.
    """
    return [
        Trial(arm, one[0], _shortened(shortest[arm], epoch_length), seeds[arm][0], "tuning")
        for arm, one in tried.items()
    ]


def _shortened(shortest: str, epoch_length: int | None) -> str:
    duration, length = Time.parse(shortest), length_of(shortest, epoch_length)
    countable = duration.unit is TimeUnit.BATCH or (
        duration.unit is TimeUnit.EPOCH and epoch_length is not None
    )
    if countable:
        duration = Time(int(min(length, max(length // _PART, _FEWEST))), TimeUnit.BATCH)
    return str(duration)


@attrs.frozen
class Estimates:
    """The cost of the trials of each arm."""

    epoch_length: int | None
    overhead: Mapping[str, float]
    """Seconds of set-up and warm-up, by arm."""
    rate: Mapping[str, float]
    """Seconds of training for each unit of length: a batch, where batches can be counted."""
    evaluation: Mapping[str, float]
    """Seconds of one evaluation."""

    @classmethod
    def of(cls, results: Iterable[TrialResult], epoch_length: int | None) -> "Estimates":
        """Return the estimates that results of short trials give; failed ones are skipped."""
        ran = {
            one.trial.arm: one
            for one in results
            if one.outcome in ("finished", "diverged") and one.batches
        }
        return cls(
            epoch_length,
            {arm: one.seconds.setup + one.seconds.warmup for arm, one in ran.items()},
            {
                arm: one.seconds.training / trained_length(one, epoch_length)
                for arm, one in ran.items()
            },
            {arm: one.seconds.evaluation / max(len(one.curve), 1) for arm, one in ran.items()},
        )

    def seconds(self, trial: Trial) -> float:
        """Return the seconds of a trial; an arm without an estimate costs nothing: it fails."""
        if trial.arm not in self.rate:
            return 0.0
        length = length_of(trial.duration, self.epoch_length)
        evaluations = max(1.0, length / self.epoch_length if self.epoch_length else 1.0)
        return (
            self.overhead[trial.arm]
            + self.rate[trial.arm] * length
            + self.evaluation[trial.arm] * evaluations
        )

    def relative_rate(self, arm: str, baseline: str) -> float:
        """Return the step cost of an arm divided by that of the baseline; 1 if unknown."""
        if not (self.rate.get(arm) and self.rate.get(baseline)):
            return 1.0
        return self.rate[arm] / self.rate[baseline]


def equal_seconds(duration: str, relative_rate: float, epoch_length: int | None) -> str:
    """Return the duration in which an arm trains for the seconds of the baseline.

    Steps that cost up to a fifth more or less count as equal, and the factor is rounded to a power
    of the fourth root of 2: a small change of the measured cost leaves trials as they are.

    Args:
        duration: The duration of the baseline.
        relative_rate: The step cost of the arm divided by that of the baseline.
        epoch_length: The batches of an epoch, if known.

    Example:
        >>> from composable.comparison.plan.estimates import equal_seconds
        >>> equal_seconds("100ba", 2.0, None), equal_seconds("4ep", 1.9, 50)
        ('50ba', '100ba')
        >>> equal_seconds("100ba", 1.1, None)
        '100ba'
    """
    length = Time.parse(duration)
    steps = round(4 * math.log2(relative_rate))
    if abs(steps) < 2 or length.unit in (TimeUnit.SECOND, TimeUnit.ITERATION):
        return duration
    if length.unit is TimeUnit.EPOCH and epoch_length is not None:
        length = Time(length.value * epoch_length, TimeUnit.BATCH)
    return str(Time(max(1, round(length.value / 2 ** (steps / 4))), length.unit))
