"""The findings of an analysis: the values that tables, plots and pages show.

An open bound of an interval is None, and so is a number that the trials do not determine.
Every ratio of times is the baseline's divided by the arm's: above 1, the arm is faster.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import attrs

__all__ = [
    "Analysis",
    "ArmAnalysis",
    "CrossingTimes",
    "Estimate",
    "Power",
    "Quality",
    "Target",
    "TimeToTarget",
    "Verdict",
]


class Verdict(str, Enum):
    """Whether a method shortens training."""

    PAYS = "pays"
    NO_EVIDENCE = "no evidence"
    COSTS = "costs"


@attrs.frozen
class Estimate:
    """A number with its 95 % confidence interval, from runs paired by seed."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    """Two-sided, for a ratio of 1 or a difference of 0, before correction over the arms."""
    seeds: int
    """The number of pairs."""
    resampled: tuple[float, float] | None = None
    """The percentile interval of the paired bootstrap. With 3 to 5 seeds it is too narrow."""


@attrs.frozen
class Target:
    """The result to reach."""

    value: float
    duration: str | None = None
    """The schedule of the baseline whose mean final result it is: the longest one on which all
    runs finished. None: the target was given."""

    @property
    def estimated(self) -> bool:
        """Whether it is estimated from runs of the baseline."""
        return self.duration is not None


@attrs.frozen
class Quality:
    """The final results of an arm on one schedule."""

    duration: str
    seconds: float
    """The time of the schedule: the calibrated cost of its steps."""
    results: Mapping[int, float | None]
    """By seed; None for a run that did not finish."""
    mean: float | None
    """None if a run did not finish."""
    low: float | None
    high: float | None
    """The two-sided 95 % confidence interval of the mean."""
    passes: bool
    """Whether the mean passes the target with 95 % confidence (one-sided)."""
    difference: Estimate | None
    """The arm's results minus the baseline's, paired by seed; None for the baseline."""


@attrs.frozen
class TimeToTarget:
    """The time of schedules whose mean final result is the target."""

    duration: str | None
    """The shortest schedule whose mean passes the target with 95 % confidence."""
    seconds: float | None
    """The time of this schedule."""
    speedup: float | None
    """The baseline's `seconds` divided by the arm's."""
    interpolated: float | None
    """Seconds at which the mean final result, linear in log time between two schedules, first
    is the target."""
    ratio: Estimate | None
    """The baseline's `interpolated` divided by the arm's; None for the baseline, and where the
    baseline does not reach the target."""


@attrs.frozen
class CrossingTimes:
    """When the runs of the longest schedule first pass the target."""

    seconds: Mapping[int, float | None]
    """By seed; None for a run that did not reach the target."""
    reached: int
    runs: int
    within: float
    """The seconds of the longest schedule: runs that did not reach it are censored here."""
    mean: float | None
    """The geometric mean of the seconds; None unless all runs reached the target."""
    ratio: Estimate | None
    """The baseline's seconds divided by the arm's, over the seeds where both reached it."""


@attrs.frozen
class Power:
    """What the number of seeds can show, for paired seeds at the 5 % level with power 0.8."""

    detectable: float
    """The smallest speed-up that is found with probability 0.8, such as 1.2."""
    seeds_for_observed: int | None
    """The seeds needed to find the observed ratio; None for more than 1,000."""
    seeds_for_tenth: int | None
    """The seeds needed to find a speed-up of 1.1; None for more than 1,000."""


@attrs.frozen
class ArmAnalysis:
    """The measures of one arm, and the verdict."""

    arm: str
    role: Literal["baseline", "repeated", "arm"]
    settings: Mapping[str, Any]
    qualities: tuple[Quality, ...]
    """By schedule, from the shortest to the longest."""
    time: TimeToTarget
    crossing: CrossingTimes
    step_cost: float | None
    """The mean seconds of a step on the longest schedule."""
    step_cost_ratio: Estimate | None
    """The arm's step cost divided by the baseline's (above 1: dearer steps). None for the
    baseline, and without calibrated costs."""
    power: Power | None
    p: float | None
    """The p value of the verdict, after Holm's correction over the arms; that of the A/A arm is not
    corrected."""
    verdict: Verdict | None
    """None for the baseline and the A/A arm."""
    why: str
    """One sentence that gives the reason."""
    notes: tuple[str, ...]
    """Failed runs, settings at the edge of their grid, times that are not calibrated."""


@attrs.frozen
class Analysis:
    """The result of a comparison."""

    metric: str
    mode: Literal["min", "max"]
    clock: Literal["cpu", "wall"]
    target: Target
    arms: tuple[ArmAnalysis, ...]
    """In the order of the protocol, the baseline first."""
    compared: int
    """The number of arms that Holm's correction counts."""
    noise_floor: Estimate | None
    """The ratio of the A/A arm."""
    notes: tuple[str, ...]
    """Warnings about the whole comparison."""

    def __getitem__(self, arm: str) -> ArmAnalysis:
        """Return the analysis of the arm of this name."""
        for found in self.arms:
            if found.arm == arm:
                return found
        raise KeyError(f"there is no arm {arm!r}; the arms are {[one.arm for one in self.arms]}.")
