"""What an analysis finds: speed-ups, and the verdict on each arm with its reason.

Every speed-up is the cost of the baseline divided by the arm's: above 1, the arm is faster. Of a
comparison by amounts of data it is the ratio of these: above 1, the arm needs less. An open bound
of an interval is None, and so is a number that the trials do not determine.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Literal

import attrs

from composable.comparison.records import Protocol, StepCost
from composable.comparison.statistics import Shares

MINIMAL_SEEDS = 3
"""With fewer seeds, the verdict is "no evidence"."""
LEVEL = 0.05
COVERED = 0.8
"""The share of the baseline's range below which a verdict is a bound."""
_EVERYWHERE = 0.95
"""The share of it on which an arm has to be faster for a bound: all but the noise."""


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

    def __str__(self) -> str:
        """Return such as "2.05x (1.80 to 2.33)" or "at least 1.80x"."""
        low, high = (show_ratio(value).removesuffix("x") for value in (self.low, self.high))
        if self.value is not None:
            interval = "no interval" if self.low is None else f"{low} to {high}"
            return f"{show_ratio(self.value)} ({interval})"
        return f"at most {high}x" if self.low is None else f"at least {low}x"


@attrs.frozen
class SpeedupAt:
    """The speed-up at one result."""

    result: float
    speedup: Estimate


@attrs.frozen
class Quality:
    """The final results of an arm on one schedule, or with one amount of data."""

    duration: str
    steps: int
    cost: StepCost
    """The measured cost of its steps."""
    results: Mapping[int, float | None]
    """By seed; None for a run that did not finish."""
    mean: float | None
    """None if a run did not finish."""
    low: float | None
    high: float | None
    """The two-sided 95 % confidence interval of the mean."""
    amount: float | None = None
    """The amount of training data, if it is compared: the results are those at the best epochs."""

    @property
    def extent(self) -> float:
        """What the result has taken: the amount of data if it is compared, or else the time."""
        return self.seconds if self.amount is None else self.amount

    @property
    def seconds(self) -> float:
        """The time of the schedule, by the cost of its steps."""
        return self.cost.run_seconds(self.steps)


@attrs.frozen(kw_only=True)
class ArmAnalysis:
    """The measures of one arm, and the verdict."""

    arm: str
    role: Literal["baseline", "repeated", "arm"]
    qualities: tuple[Quality, ...]
    """By schedule, from the shortest to the longest."""
    step_cost: float
    """The mean seconds of a step on the longest schedule."""
    step_cost_ratio: Estimate | None
    """The arm's step cost divided by the baseline's (above 1: more expensive steps). None for the
    baseline, and without measured costs."""
    notes: tuple[str, ...]
    """Failed runs, settings at the edge of their grid, times that are not measured."""
    speedup: Estimate | None = None
    """The mean over the results that both curves reach, or the speed-up at the target; open on
    one side if the ends of the curves give only a bound. None for the baseline, and without two
    schedules on which all runs finished."""
    curve: tuple[SpeedupAt, ...] = ()
    """The speed-up by result, from the worst to the best that both curves reach."""
    shares: Shares | None = None
    """The shares of the baseline's range of results that the arm reaches; None without a curve."""
    noisy: bool = False
    """Whether the results of a curve's schedules differ by too little for their noise."""
    needs: str | None = None
    """The schedule or amount to add, so that the curves reach the same results: "40ba"."""
    p: float | None = None
    """The p value of the verdict, after Holm's correction over the arms; not corrected for the A/A
    arm."""
    verdict: Verdict | None = None
    """None for the baseline and the A/A arm."""
    at_least: float | None = None
    """The verdict's bound where the curves share less than 80 % of the baseline's range: the arm
    pays at least this much, or costs as much as this ratio below 1."""
    why: str = ""
    """One sentence that gives the reason."""

    @property
    def covered(self) -> float:
        """The share of the baseline's range of results that the arm reaches as well."""
        return self.shares.both if self.shares else float(self.role == "baseline")

    @property
    def at_results(self) -> tuple[SpeedupAt, ...]:
        """The speed-up at five results, from the worst to the best; at one with a target."""
        return self.curve[:: max(1, (len(self.curve) - 1) // 4)]


@attrs.frozen
class Analysis:
    """The result of a comparison."""

    arms: tuple[ArmAnalysis, ...]
    """In the order of the protocol, the baseline first."""
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
        names = [found.arm for found in self.arms]
        if arm not in names:
            raise ValueError(f"arm={arm!r} must be one of {names}.")
        return self.arms[names.index(arm)]


# --- what is compared: time or amounts of data ---


@attrs.frozen(kw_only=True)
class Axis:
    """The words for the ratio of what the baseline and an arm need for a result: of time."""

    ratio: str = "speed-up"
    claim: str = "{arm} trains {ratio} as fast as {baseline}{goal}"
    unclaimed: str = "No evidence that an arm trains faster than {baseline}"
    above: str = "faster"  # what an arm does where the ratio is above 1
    below: str = "slower"
    point: str = "schedule"
    shorter: str = "shorter schedules"
    example: str = 'durations=["5ep", "10ep", "20ep"]'
    unit: str = "{clock} of training"
    results: str = (  # the columns of the table of results
        "step, set-up: in milliseconds; set-up has the compilation and first steps, and does not "
        "count as a cost"
    )


_DATA = Axis(
    ratio="times the data",
    claim="{arm} is worth {ratio} the data{goal}, against {baseline}",
    unclaimed="No evidence that an arm needs less data than {baseline}",
    above="less data",
    below="more data",
    point="amount",
    shorter="smaller amounts",
    example="data_amounts=[0.1, 0.3, 1.0]",
    unit="amount of training data",
    results="result: of the evaluation, of all schedules of a seed, with the best metric of "
    "tuning. batches: the mean number before it",
)


def axis_of(protocol: Protocol) -> Axis:
    """Return what a comparison divides."""
    return _DATA if protocol.data_amounts else Axis()


# --- verdicts ---


def judge(
    found: ArmAnalysis,
    protocol: Protocol,
    p: float | None,
    compared: int,
    noise: Estimate | None = None,
) -> ArmAnalysis:
    """Return an arm with its verdict after the correction, and the sentence that gives the reason.

    An arm pays, or costs, if its speed-up differs from 1 with p < 0.05 after Holm's correction, and
    its interval lies beyond the noise floor: the speed-up of the A/A arm, and the inverse of it.
    Where the curves share less than 80 % of the baseline's range, it pays only if it is faster on
    the whole of it, since its cheapest schedule passes the other results at less cost: at least by
    the lower end of the interval. It costs only if its most expensive schedule does not reach the
    other results at more cost.
    """
    axis, target, ratio = axis_of(protocol), protocol.target, found.speedup
    goal = None if target is None else show_number(target)
    floor = noise.value if noise is not None and noise.value is not None else 1.0
    floor = max(floor, 1 / floor)
    if ratio is None or found.shares is None:
        return attrs.evolve(found, verdict=Verdict.NO_EVIDENCE, why=_why_not(found, goal, axis))
    verdict, bound = _verdict(ratio, found.shares, p, floor, whole=target is not None)
    why = _describe(found, ratio, goal)
    if bound is not None and ratio.value is not None:
        why = f"at {'least' if bound > 1 else 'most'} {show_ratio(bound)}: {why}"
    if p is not None:
        many = f" after Holm's correction over {compared} arms" if compared > 1 else ""
        why += f", p {'< 0.0001' if p < 0.0001 else f'= {p:.2g}'}{many}"
    why = "; ".join([why, *_remarks(found, ratio, verdict, p, floor, axis)])
    return attrs.evolve(found, p=p, verdict=verdict, at_least=bound, why=why)


def _verdict(
    ratio: Estimate, shares: Shares, p: float | None, floor: float, *, whole: bool
) -> tuple[Verdict, float | None]:
    """Return the verdict, and its bound unless the curves share the whole range."""
    pays = ratio.low is not None and ratio.low > floor
    costs = ratio.high is not None and ratio.high < 1 / floor
    if p is None or p >= LEVEL or ratio.seeds < MINIMAL_SEEDS or not (pays or costs):
        return Verdict.NO_EVIDENCE, None
    verdict, bound = (Verdict.PAYS, ratio.low) if pays else (Verdict.COSTS, ratio.high)
    if whole or shares.both >= COVERED:
        return verdict, None
    if (shares.faster if pays else shares.slower) >= _EVERYWHERE:
        return verdict, bound
    return Verdict.NO_EVIDENCE, None


# --- sentences ---


def _why_not(found: ArmAnalysis, goal: str | None, axis: Axis) -> str:
    if found.shares is None:
        return (
            f"needs at least two {axis.point}s on which all runs finished, such as {axis.example}, "
            "and two seeds"
        )
    if found.noisy:
        return (
            f"the results of its {axis.point}s, or of the baseline's, differ by too little for "
            f"their noise: add {axis.shorter}, or seeds"
        )
    reason = "hardly reach the same results" if goal is None else f"end before {goal}"
    added = f"; add its {axis.point} of {found.needs}" if found.needs else ""
    return f"its curve and the baseline's {reason}{added}"


def _describe(found: ArmAnalysis, ratio: Estimate, goal: str | None) -> str:
    is_bound = ratio.value is None
    if goal is not None:
        return f"{ratio} at {goal}{', by the ends of the curves' * is_bound}"
    if is_bound:
        end = "worst result is better than the baseline's best one"
        if ratio.low is None:
            end = "best result is worse than the baseline's worst one"
        return f"{ratio}, since its {end}"
    ends = " and ".join(
        f"{show_ratio(speedup.speedup.value)} at {show_number(speedup.result)}"
        for speedup in (found.curve[0], found.curve[-1])
    )
    return f"{ratio} over {found.covered:.0%} of the baseline's range of results, {ends}"


def _remarks(
    found: ArmAnalysis,
    ratio: Estimate,
    verdict: Verdict,
    p: float | None,
    floor: float,
    axis: Axis,
) -> Iterator[str]:
    """Yield where an arm pays and where not, and what would show more."""
    points = found.at_results
    faster = [point for point in points if point.speedup.low is not None and point.speedup.low > 1]
    slower = [one for one in points if one.speedup.high is not None and one.speedup.high < 1]
    if faster and slower:
        yield f"{axis.above} {_between(faster)}, {axis.below} {_between(slower)}"
    elif verdict is Verdict.PAYS and len(faster) < len(points):
        yield f"shown {_between(faster)}" if faster else "shown for the mean only"
    if ratio.seeds < MINIMAL_SEEDS:
        yield f"a verdict needs {MINIMAL_SEEDS} seeds"
    elif p is None:
        yield "every seed gives the same difference: there is no spread to judge by"
    elif verdict is Verdict.NO_EVIDENCE and p < LEVEL:
        if (ratio.low or 0) <= floor and (ratio.high or inf) >= 1 / floor:
            yield f"the noise floor, {show_ratio(floor)}, is not exceeded with 95 % confidence"
        else:
            yield "the curves share too little of the baseline's range for a verdict"
    if found.needs is not None:
        yield f"add its {axis.point} of {found.needs} to compare more results"


def _between(points: Sequence[SpeedupAt]) -> str:
    first, last = show_number(points[0].result), show_number(points[-1].result)
    return f"at {first}" if first == last else f"at {first} to {last}"


def show_number(value: float) -> str:
    """Show a number with three significant digits, such as "13.8" and "0.00123"."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show_ratio(ratio: float | None) -> str:
    """Show a ratio with at least two digits, such as "2.05x" and "12.3x"."""
    if ratio is None:
        return "–"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"
