"""The findings of an analysis: the values that tables, plots and pages show.

Every ratio of costs is the baseline's divided by the arm's: above 1, the arm is faster. An open
bound of an interval is None, and so is a number that the trials do not determine.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import attrs

__all__ = [
    "Analysis",
    "ArmAnalysis",
    "Estimate",
    "Power",
    "Quality",
    "SpeedupAt",
    "Verdict",
]


class Verdict(str, Enum):
    """Whether a method shortens training."""

    PAYS = "pays"
    NO_EVIDENCE = "no evidence"
    COSTS = "costs"


@attrs.frozen
class Estimate:
    """A ratio with its 95 % confidence interval."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    """Two-sided, for a ratio of 1, before correction over the arms."""
    seeds: int
    """The number of seeds."""


@attrs.frozen
class SpeedupAt:
    """The speed-up at one result."""

    result: float
    speedup: Estimate


@attrs.frozen
class Quality:
    """The final results of an arm on one schedule."""

    duration: str
    seconds: float
    """The time of the schedule: the measured cost of its steps."""
    results: Mapping[int, float | None]
    """By seed; None for a run that did not finish."""
    mean: float | None
    """None if a run did not finish."""
    low: float | None
    high: float | None
    """The two-sided 95 % confidence interval of the mean."""


@attrs.frozen
class Power:
    """What the number of seeds can show at the 5 % level with power 0.8."""

    detectable: float
    """The smallest speed-up that is found with probability 0.8, such as 1.2."""
    seeds_for_observed: int | None
    """The seeds needed to find the observed speed-up; None for more than 1,000."""


@attrs.frozen
class ArmAnalysis:
    """The measures of one arm, and the verdict."""

    arm: str
    role: Literal["baseline", "repeated", "arm"]
    settings: Mapping[str, Any]
    qualities: tuple[Quality, ...]
    """By schedule, from the shortest to the longest."""
    speedup: Estimate | None
    """The mean over the results that both curves reach, or the speed-up at the target; open on
    one side if the ends of the curves give only a bound. None for the baseline, and without two
    schedules on which all runs finished."""
    curve: tuple[SpeedupAt, ...]
    """The speed-up by result, from the worst to the best that both curves reach."""
    covered: float
    """The share of the baseline's range of results that the arm reaches as well."""
    at_least: float | None
    """The verdict's bound where the curves share less than 80 % of the baseline's range: the arm
    pays at least this much, or costs as much as this ratio below 1."""
    needs: str | None
    """The schedule to add, so that the curves reach the same results, such as "40ba"."""
    step_cost: float | None
    """The mean seconds of a step on the longest schedule."""
    step_cost_ratio: Estimate | None
    """The arm's step cost divided by the baseline's (above 1: more expensive steps). None for the
    baseline, and without measured costs."""
    power: Power | None
    p: float | None
    """The p value of the verdict, after Holm's correction over the arms; that of the A/A arm is not
    corrected."""
    verdict: Verdict | None
    """None for the baseline and the A/A arm."""
    why: str
    """One sentence that gives the reason."""
    notes: tuple[str, ...]
    """Failed runs, settings at the edge of their grid, times that are not measured."""

    @property
    def at_results(self) -> tuple[SpeedupAt, ...]:
        """The speed-up at five results, from the worst to the best; at one with a target."""
        return self.curve[:: max(1, (len(self.curve) - 1) // 4)]


@attrs.frozen
class Analysis:
    """The result of a comparison."""

    metric: str
    mode: Literal["min", "max"]
    clock: Literal["cpu", "wall"]
    target: float | None
    """The result at which the speed-up is measured; None: all results that both curves reach."""
    arms: tuple[ArmAnalysis, ...]
    """In the order of the protocol, the baseline first."""
    compared: int
    """The number of arms that Holm's correction counts."""
    noise_floor: Estimate | None
    """The speed-up of the A/A arm."""
    notes: tuple[str, ...]
    """Warnings about the whole comparison."""

    @property
    def needed(self) -> Mapping[str, str]:
        """The schedule to add, by arm, where the curves do not reach the same results."""
        return {arm.arm: arm.needs for arm in self.arms if arm.needs is not None}

    def __getitem__(self, arm: str) -> ArmAnalysis:
        """Return the analysis of the arm of this name."""
        for found in self.arms:
            if found.arm == arm:
                return found
        raise KeyError(f"there is no arm {arm!r}; the arms are {[one.arm for one in self.arms]}.")
