"""The measures of one arm against the baseline."""

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from statistics import fmean, stdev

import attrs

from composable.comparison.analysis.findings import (
    CrossingTimes,
    Estimate,
    Power,
    Quality,
    Target,
    TimeToTarget,
)
from composable.comparison.analysis.schedules import Schedule, first_crossings
from composable.comparison.analysis.statistics import (
    Spread,
    cost_ratio,
    lower_bound,
    mean_interval,
    paired_estimate,
    power_of,
)
from composable.comparison.analysis.times import Curve, TimeComparison, crossing_time
from composable.comparison.records import Protocol

__all__ = [
    "Context",
    "compare_step_costs",
    "find_crossings",
    "find_power",
    "find_quality",
    "find_time",
    "pair_seeds",
    "steps_of",
]


@attrs.frozen
class Context:
    """The protocol, the target and the baseline, with which each arm is measured."""

    protocol: Protocol
    sign: int
    target: Target
    baseline: tuple[Schedule, ...]
    resamples: int

    @property
    def level(self) -> float | None:
        """The given target, signed so that higher is better; None if it is estimated."""
        return None if self.target.estimated else self.sign * self.target.value


def pair_seeds(
    baseline: Sequence[Schedule], schedules: Sequence[Schedule], repeated: bool
) -> list[tuple[int, int]]:
    """Return the pairs of a seed of the baseline and one of the arm.

    The A/A arm has other seeds, which are paired in their order.
    """
    base, arm = (
        sorted({seed for one in each for seed in one.runs}) for each in (baseline, schedules)
    )
    if repeated:
        return list(zip(base, arm, strict=False))
    return [(seed, seed) for seed in base if seed in arm]


def steps_of(schedule: Schedule) -> int:
    """Return the number of steps of the longest run."""
    return max(run.batches for run in schedule.runs.values())


def compare_step_costs(
    context: Context, schedules: Sequence[Schedule]
) -> tuple[Estimate | None, float]:
    """Return the ratio of step costs, and the standard error of the log ratio of times."""
    base, arm = context.baseline[-1], schedules[-1]
    if base.cost is None or arm.cost is None:
        return None, _error_of_seconds(base, arm)
    if base.cost == arm.cost:
        return Estimate(1.0, 1.0, 1.0, 1.0, len(arm.cost.seconds[0])), 0.0
    steps = [one.seconds / max(steps_of(one), 1) for one in (base, arm)]
    if not all(steps):  # no run made a step
        return None, 0.0
    return cost_ratio(base.cost.seconds, arm.cost.seconds, steps[1] / steps[0])


def _error_of_seconds(base: Schedule, arm: Schedule) -> float:
    """Return the standard error of the log ratio of the trials' own seconds."""
    error = 0.0
    for schedule in (base, arm):
        logs = [log(one) for one in _own_seconds(schedule)]
        error += stdev(logs) ** 2 / len(logs) if len(logs) > 1 else 0.0
    return 0.0 if base is arm else float(error**0.5)


def _own_seconds(schedule: Schedule) -> list[float]:
    runs = [run for run in schedule.runs.values() if run.outcome == "finished"]
    return [run.seconds.training for run in runs if run.seconds.training > 0]


def find_crossings(
    context: Context,
    schedules: Sequence[Schedule],
    baseline: CrossingTimes | None,
    pairs: Sequence[tuple[int, int]],
    cost_error: float,
) -> tuple[CrossingTimes, Spread | None]:
    """Return the first crossings, and the uncertainty of the log ratios of pairs."""
    longest = schedules[-1]
    seconds = first_crossings(longest, context.protocol.metric, context.target.value, context.sign)
    times = [value for value in seconds.values() if value is not None]
    complete = len(times) == len(seconds) and min(times, default=0.0) > 0
    ratio, spread = None, None
    if baseline is not None:
        ratio, spread = _crossing_ratio(baseline.seconds, seconds, pairs, cost_error, context)
    mean = exp(fmean(log(value) for value in sorted(times))) if complete else None
    found = CrossingTimes(seconds, len(times), len(seconds), longest.seconds, mean, ratio)
    return found, spread


def _crossing_ratio(
    baseline: Mapping[int, float | None],
    arm: Mapping[int, float | None],
    pairs: Sequence[tuple[int, int]],
    cost_error: float,
    context: Context,
) -> tuple[Estimate | None, Spread | None]:
    both = [(baseline.get(one), arm.get(other)) for one, other in pairs]
    logs = [log(one / other) for one, other in both if one and other]
    found = paired_estimate(logs, cost_error, context.resamples)
    if found.value is None:
        return None, None
    resampled = found.resampled and (exp(found.resampled[0]), exp(found.resampled[1]))
    low, high = (None if one is None else exp(one) for one in (found.low, found.high))
    ratio = Estimate(exp(found.value), low, high, found.p, found.seeds, resampled)
    pair = stdev(logs) if len(logs) > 1 else 0.0
    return ratio, (Spread(pair, cost_error) if pair else None)


def find_quality(context: Context, schedule: Schedule, pairs: Sequence[tuple[int, int]]) -> Quality:
    """Return the final results on a schedule, and their differences from the baseline's."""
    values = [value for value in schedule.finals.values() if value is not None]
    complete = schedule.complete
    low, high = mean_interval(values) if complete else (None, None)
    same = next((one for one in context.baseline if one.duration == schedule.duration), None)
    return Quality(
        schedule.duration,
        schedule.seconds,
        schedule.finals,
        fmean(values) if complete else None,
        low,
        high,
        complete and _passes(context, schedule, pairs),
        None if same is None else paired_estimate(_differences(same, schedule, pairs)),
    )


def _passes(context: Context, schedule: Schedule, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the mean is beyond the target with 95 % confidence."""
    if context.target.estimated:
        beyond = _differences(_reference(context.baseline), schedule, pairs)
    else:
        finals = [value for value in schedule.finals.values() if value is not None]
        beyond = [value - context.target.value for value in finals]
    bound = lower_bound([context.sign * one for one in beyond])
    return bound is not None and bound >= 0


def _reference(baseline: Sequence[Schedule]) -> Schedule:
    return next((one for one in reversed(baseline) if one.complete), baseline[-1])


def _differences(
    baseline: Schedule, schedule: Schedule, pairs: Sequence[tuple[int, int]]
) -> list[float]:
    both = [(baseline.finals.get(one), schedule.finals.get(other)) for one, other in pairs]
    return [other - one for one, other in both if one is not None and other is not None]


def find_time(
    context: Context,
    qualities: Sequence[Quality],
    base_curve: Curve | None,
    curve: Curve | None,
    times: TimeComparison | None,
) -> TimeToTarget:
    """Return the time to target of an arm, by its schedules and by its curve."""
    passing = min(
        (one for one in qualities if one.passes), key=lambda one: one.seconds, default=None
    )
    base_passing = min(
        (
            one.seconds
            for one in context.baseline
            if one.complete and _passes(context, one, pair_seeds(context.baseline, [one], False))
        ),
        default=None,
    )
    seconds = None if passing is None else passing.seconds
    speedup = base_passing / seconds if base_passing is not None and seconds else None
    return TimeToTarget(
        None if passing is None else passing.duration,
        seconds,
        speedup,
        _interpolated(context, base_curve, curve),
        None if times is None else times.ratio,
    )


def _interpolated(context: Context, base_curve: Curve | None, curve: Curve | None) -> float | None:
    if curve is None or base_curve is None:
        return None
    if context.level is not None:
        level = context.level
    elif curve == base_curve:
        return exp(curve.log_times[-1])
    else:
        level = fmean(base_curve.results[-1])
    time = crossing_time(curve, level)
    return None if time is None or time == -inf else exp(time)


def find_power(
    times: TimeComparison | None, spread: Spread | None, crossing: CrossingTimes, pairs: int
) -> Power | None:
    """Return the power of the seeds, by the curves or else by first crossings."""
    if pairs < 2:
        return None
    if times is not None and times.spread:
        return power_of(times.spread, pairs, times.ratio.value)
    if spread and crossing.ratio is not None and crossing.reached == crossing.runs:
        return power_of(spread, crossing.ratio.seeds, crossing.ratio.value)
    return None
