"""The analysis of a study: measures, intervals and verdicts, from its reporting trials alone.

The times are those of the calibrated step costs, so that a busy machine does not decide.

Several schedules: the verdict rests on the time at which the mean final result over the seeds, as
a function of the log time of the schedules, reaches the target. Its p value is that of the paired
t test, over the seeds, of the final results at the baseline's time to target. The default target
is the baseline's result on its longest schedule: it is estimated, so the test pairs with the
baseline's results and not with their mean.

One schedule, or a target that the baseline's shortest schedule passes already: the verdict rests
on the first crossings within the runs of the longest schedule, if the target is a given number and
all runs of both arms reached it; otherwise, with one schedule, on the final results by the cost of
the steps: better at no more time pays, worse at no less time costs.

A target that the baseline does not reach: an arm pays if its mean reaches the target and is better
at the time of the baseline's longest schedule.

A run that did not finish counts as one that does not reach the target: its schedule does not pass.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean, stdev

import attrs

from composable.comparison.findings import (
    Analysis,
    ArmAnalysis,
    CrossingTimes,
    Estimate,
    Power,
    Quality,
    Target,
    TimeToTarget,
)
from composable.comparison.measured import Schedule, curve_of, first_crossings, measure
from composable.comparison.records import Protocol, Study
from composable.comparison.settings import edge_notes
from composable.comparison.statistics import (
    Curve,
    TimeComparison,
    compare_times,
    cost_ratio,
    crossing_time,
    holm,
    lower_bound,
    mean_interval,
    paired_estimate,
    power_of,
)
from composable.comparison.verdicts import ArmFacts, Case, Evidence, judge, show_estimate

__all__ = ["analyze"]


@attrs.frozen
class _Context:
    """What all arms are measured by."""

    protocol: Protocol
    sign: int
    target: Target
    baseline: tuple[Schedule, ...]
    resamples: int

    @property
    def level(self) -> float | None:
        """The given target, higher is better; None: the baseline's results."""
        return None if self.target.estimated else self.sign * self.target.value


@attrs.frozen
class _Draft:
    """An arm's measures before the correction over the arms."""

    found: ArmAnalysis
    evidence: Evidence
    facts: ArmFacts


def analyze(study: Study, *, resamples: int = 2000) -> Analysis:
    """Measure the arms of a study against its baseline, and say whether they pay.

    Args:
        study: The protocol, the results of its trials, and the calibrated step costs.
        resamples: The resamples of the bootstrap for the percentile intervals; 0 leaves them out.

    Returns:
        The analysis, which follows from the study alone: the same study gives the same analysis.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: The baseline has no finished reporting trial, a run has two results, or the
            metric is not logged.
    """
    measured = measure(study)
    protocol = study.protocol
    sign = 1 if protocol.mode == "max" else -1
    baseline = measured.get(protocol.baseline, ())
    target = _target(protocol, baseline)
    context = _Context(protocol, sign, target, baseline, resamples)
    drafts = {
        arm: _draft(context, arm, measured[arm]) for arm in protocol.arms if measured.get(arm)
    }
    compared = [arm for arm in drafts if drafts[arm].found.role == "arm"]
    corrected = dict(zip(compared, holm([drafts[arm].evidence.p for arm in compared]), strict=True))
    base_facts = drafts[protocol.baseline].facts
    arms = tuple(
        _judged(context, draft, base_facts, corrected[arm], len(compared))
        if arm in corrected
        else draft.found
        for arm, draft in drafts.items()
    )
    noise = _noise_floor(drafts.get(protocol.repeated or ""))
    notes = _notes(context, noise, [arm for arm in protocol.arms if arm not in drafts])
    return Analysis(
        protocol.metric,
        protocol.mode,
        protocol.clock,
        target,
        arms,
        len(compared),
        noise,
        notes,
    )


def _target(protocol: Protocol, baseline: Sequence[Schedule]) -> Target:
    finished = [
        [value for value in schedule.finals.values() if value is not None] for schedule in baseline
    ]
    if not any(finished):
        errors = sorted({run.error for one in baseline for run in one.runs.values() if run.error})
        raise ValueError(
            f"the baseline {protocol.baseline!r} has no finished reporting trial to compare with"
            + (f": {errors[0]}" if errors else ".")
        )
    if protocol.target is not None:
        return Target(protocol.target, False)
    complete = [
        values for schedule, values in zip(baseline, finished, strict=True) if schedule.complete
    ]
    return Target(fmean(sorted((complete or [one for one in finished if one])[-1])), True)


def _draft(context: _Context, arm: str, schedules: tuple[Schedule, ...]) -> _Draft:
    protocol = context.protocol
    role = {protocol.baseline: "baseline", protocol.repeated: "repeated"}.get(arm, "arm")
    pairs = _pairs(context.baseline, schedules, role == "repeated")
    cost, cost_error = _step_costs(context, schedules)
    base_curve = curve_of(context.baseline, [one for one, _ in pairs], context.sign)
    curve = curve_of(schedules, [one for _, one in pairs], context.sign)
    base_crossing, _ = _crossing(context, context.baseline, None, pairs, 0.0)
    crossing, spread = _crossing(context, schedules, base_crossing, pairs, cost_error)
    times = _compare(context, base_curve, curve, cost_error)
    evidence = _evidence(context, base_curve, curve, times, (base_crossing, crossing), cost_error)
    qualities = tuple(_quality(context, one, pairs) for one in schedules)
    time = _time(context, qualities, base_curve, curve, times)
    is_baseline = role == "baseline"
    if is_baseline:
        time, crossing = attrs.evolve(time, ratio=None), attrs.evolve(crossing, ratio=None)
        qualities = tuple(attrs.evolve(one, difference=None) for one in qualities)
    found = ArmAnalysis(
        arm,
        role,  # type: ignore[arg-type]
        protocol.chosen.get(arm, {}),
        qualities,
        time,
        crossing,
        schedules[-1].seconds / max(_batches(schedules[-1]), 1),
        None if is_baseline else cost,
        None if is_baseline else _power(times, spread, crossing, len(pairs)),
        None if is_baseline else evidence.p,
        None,
        "",
        _arm_notes(context, arm, schedules),
    )
    reaches = any(
        one.mean is not None and context.sign * (one.mean - context.target.value) >= 0
        for one in qualities
    )
    return _Draft(found, evidence, ArmFacts(time, crossing, qualities[-1], reaches))


def _judged(
    context: _Context, draft: _Draft, baseline: ArmFacts, p: float | None, compared: int
) -> ArmAnalysis:
    case = Case(
        draft.evidence,
        p,
        compared,
        context.target.value,
        draft.facts,
        baseline,
        draft.found.step_cost_ratio,
    )
    verdict, why = judge(case)
    return attrs.evolve(draft.found, p=p, verdict=verdict, why=why)


def _pairs(
    baseline: Sequence[Schedule], schedules: Sequence[Schedule], repeated: bool
) -> list[tuple[int, int]]:
    """Pair the seeds; those of the A/A arm, which are others, in their order."""
    base, arm = (
        sorted({seed for one in each for seed in one.runs}) for each in (baseline, schedules)
    )
    if repeated:
        return list(zip(base, arm, strict=False))
    return [(seed, seed) for seed in base if seed in arm]


def _batches(schedule: Schedule) -> int:
    return max(run.batches for run in schedule.runs.values())


def _step_costs(context: _Context, schedules: Sequence[Schedule]) -> tuple[Estimate | None, float]:
    """Return the ratio of the step costs, and the standard error of the log ratio of times."""
    base, arm = context.baseline[-1], schedules[-1]
    if base.cost is None or arm.cost is None:
        return None, _error_of_seconds(base, arm)
    if base.cost == arm.cost:
        return Estimate(1.0, 1.0, 1.0, 1.0, len(arm.cost.seconds[0])), 0.0
    steps = [one.seconds / max(_batches(one), 1) for one in (base, arm)]
    return cost_ratio(base.cost.seconds, arm.cost.seconds, steps[1] / steps[0])


def _error_of_seconds(base: Schedule, arm: Schedule) -> float:
    """Return the standard error of the log ratio of the trials' own seconds."""
    error = 0.0
    for schedule in (base, arm):
        logs = [
            log(run.seconds.training) for run in schedule.runs.values() if _timed(schedule, run)
        ]
        error += stdev(logs) ** 2 / len(logs) if len(logs) > 1 else 0.0
    return 0.0 if base is arm else float(error**0.5)


def _timed(schedule: Schedule, run: object) -> bool:
    return getattr(run, "outcome", "") == "finished" and run.seconds.training > 0  # type: ignore


def _compare(
    context: _Context, baseline: Curve | None, arm: Curve | None, cost_error: float
) -> TimeComparison | None:
    if baseline is None or arm is None:
        return None
    return compare_times(baseline, arm, context.level, cost_error, context.resamples)


def _evidence(
    context: _Context,
    baseline: Curve | None,
    arm: Curve | None,
    times: TimeComparison | None,
    crossings: tuple[CrossingTimes, CrossingTimes],
    cost_error: float,
) -> Evidence:
    if baseline is None or arm is None:
        return Evidence("none", None, 0.0, 0)
    pairs = len(arm.results[0])
    if len(baseline.log_times) > 1 and times is not None:
        return Evidence("time", times.ratio.p, times.gain, pairs)
    ratio = crossings[1].ratio
    all_reached = all(one.reached == one.runs for one in crossings)
    if not context.target.estimated and all_reached and ratio and ratio.value is not None:
        return Evidence("crossing", ratio.p, log(ratio.value), ratio.seeds)
    easy = context.level is not None and crossing_time(baseline, context.level) == -float("inf")
    equal_time = compare_times(baseline, arm, None, cost_error)
    if equal_time is None or (easy and len(baseline.log_times) > 1):
        return Evidence("none", None, 0.0, pairs)
    return Evidence("quality", equal_time.ratio.p, equal_time.gain, pairs)


def _crossing(
    context: _Context,
    schedules: Sequence[Schedule],
    baseline: CrossingTimes | None,
    pairs: Sequence[tuple[int, int]],
    cost_error: float,
) -> tuple[CrossingTimes, float | None]:
    """Return the first crossings, and the standard deviation of the log ratios of pairs."""
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
    context: _Context,
) -> tuple[Estimate | None, float | None]:
    both = [(baseline.get(one), arm.get(other)) for one, other in pairs]
    logs = [log(one / other) for one, other in both if one and other]
    found = paired_estimate(logs, cost_error, context.resamples)
    if found.value is None:
        return None, None
    resampled = found.resampled and (exp(found.resampled[0]), exp(found.resampled[1]))
    low, high = (None if one is None else exp(one) for one in (found.low, found.high))
    ratio = Estimate(exp(found.value), low, high, found.p, found.seeds, resampled)
    return ratio, (stdev(logs) if len(logs) > 1 else None)


def _quality(context: _Context, schedule: Schedule, pairs: Sequence[tuple[int, int]]) -> Quality:
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


def _passes(context: _Context, schedule: Schedule, pairs: Sequence[tuple[int, int]]) -> bool:
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


def _time(
    context: _Context,
    qualities: Sequence[Quality],
    base_curve: Curve | None,
    curve: Curve | None,
    times: TimeComparison | None,
) -> TimeToTarget:
    passing = min(
        (one for one in qualities if one.passes), key=lambda one: one.seconds, default=None
    )
    base_passing = min(
        (
            one.seconds
            for one in context.baseline
            if one.complete and _passes(context, one, _pairs(context.baseline, [one], False))
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


def _interpolated(context: _Context, base_curve: Curve | None, curve: Curve | None) -> float | None:
    if curve is None or base_curve is None:
        return None
    if context.level is not None:
        level = context.level
    elif curve == base_curve:
        return exp(curve.log_times[-1])
    else:
        level = fmean(base_curve.results[-1])
    time = crossing_time(curve, level)
    return None if time is None or time == -float("inf") else exp(time)


def _power(
    times: TimeComparison | None, spread: float | None, crossing: CrossingTimes, pairs: int
) -> Power | None:
    if pairs < 2:
        return None
    if times is not None and times.spread:
        return power_of(times.spread, pairs, times.ratio.value)
    if spread and crossing.ratio is not None:
        return power_of(spread, crossing.ratio.seeds, crossing.ratio.value)
    return None


def _noise_floor(repeated: _Draft | None) -> Estimate | None:
    if repeated is None:
        return None
    ratio = repeated.found.time.ratio
    return ratio if ratio is not None else repeated.found.crossing.ratio


def _arm_notes(context: _Context, arm: str, schedules: Sequence[Schedule]) -> tuple[str, ...]:
    notes = edge_notes(context.protocol, arm)
    for schedule in schedules:
        outcomes = [run.outcome for run in schedule.runs.values()]
        lost = sorted({one for one in outcomes if one != "finished"})
        missing = sum(value is None for value in schedule.finals.values())
        if missing:
            how = f" ({', '.join(lost)})" if lost else " (the result is not finite)"
            notes.append(
                f"{missing} of {len(outcomes)} runs of {schedule.duration} did not finish{how}: "
                "they count as not reaching the target"
            )
    if any(one.cost is None for one in schedules):
        notes.append("the step cost is not calibrated: times are those of the trials themselves")
    return tuple(notes)


def _notes(context: _Context, noise: Estimate | None, absent: Sequence[str]) -> tuple[str, ...]:
    notes = list(context.protocol.notes)
    if context.target.estimated:
        notes.append(
            "the target is the baseline's mean final result on its longest schedule: it is "
            "estimated from the same runs, and the intervals include its uncertainty"
        )
    if noise is not None and noise.p is not None and noise.p < 0.05:
        notes.append(
            f"the baseline differs from itself with other seeds: {show_estimate(noise)}; with a "
            "correct procedure this happens once in 20 comparisons, so distrust small effects"
        )
    if len(context.protocol.seeds) < 3:
        notes.append("fewer than 3 seeds: no arm is said to pay or to cost")
    notes += [f"arm {arm!r} has no reporting trial" for arm in absent]
    return tuple(notes)
