"""The analysis of a study: measures, intervals and verdicts, from its reporting trials alone.

The times are those of the calibrated step costs, so that a busy machine does not decide.

Several schedules: the verdict rests on the time at which the mean final result over the seeds, as
a function of the log time of the schedules, reaches the target. Its p value is that of the paired
t test, over the seeds, of the final results at the baseline's time to target. The default target
is the baseline's result on its longest schedule: it is estimated, so the test pairs with the
baseline's results and not with their mean. Arms may have schedules of other lengths: only their
times are compared.

One schedule of both arms, or a target that the baseline's shortest schedule passes already: the
verdict rests on the first crossings within the runs of the longest schedule, if the target is a
given number and all runs of both arms reached it; otherwise, with one schedule of the baseline, on
the final results by the cost of the steps: better at no more time pays, worse at no less time
costs.

A target that the baseline does not reach: an arm pays if its mean reaches the target and is better
at the time of the baseline's longest schedule.

A run that did not finish counts as one that does not reach the target: its schedule does not pass.
"""

from collections.abc import Mapping, Sequence
from math import inf, log
from statistics import fmean
from typing import Literal

import attrs

from composable.comparison.analysis.findings import (
    Analysis,
    ArmAnalysis,
    CrossingTimes,
    Estimate,
    Target,
)
from composable.comparison.analysis.grid_edges import edge_notes
from composable.comparison.analysis.measures import (
    Context,
    compare_step_costs,
    find_crossings,
    find_power,
    find_quality,
    find_time,
    pair_seeds,
    steps_of,
)
from composable.comparison.analysis.schedules import Schedule, curve_of, schedules_of
from composable.comparison.analysis.statistics import holm
from composable.comparison.analysis.times import Curve, TimeComparison, compare_times, crossing_time
from composable.comparison.analysis.verdicts import (
    MINIMAL_SEEDS,
    ArmFacts,
    Case,
    Evidence,
    judge,
    show_estimate,
)
from composable.comparison.records import Protocol, Study, TrialResult

__all__ = ["analyze"]


@attrs.frozen
class _Draft:
    """An arm's measures before the correction over the arms."""

    found: ArmAnalysis
    evidence: Evidence
    facts: ArmFacts


@attrs.frozen
class _Timing:
    """The schedules of all arms, with times of one kind: calibrated ones or the trials' own."""

    schedules: Mapping[str, tuple[Schedule, ...]]
    context: Context
    baseline: ArmFacts

    @classmethod
    def of(cls, study: Study, resamples: int) -> "_Timing":
        """Return the schedules of a study: without costs, with the trials' own seconds."""
        protocol, schedules = study.protocol, schedules_of(study)
        baseline = schedules.get(protocol.baseline, ())
        sign = 1 if protocol.mode == "max" else -1
        context = Context(protocol, sign, _target(protocol, baseline), baseline, resamples)
        plain = attrs.evolve(context, resamples=0)
        return cls(schedules, context, _draft(plain, protocol.baseline, baseline).facts)

    def is_calibrated(self, arm: str) -> bool:
        """Whether the times of an arm and of the baseline are calibrated."""
        both = *self.context.baseline, *self.schedules[arm]
        return all(one.cost is not None for one in both)


def analyze(study: Study, *, resamples: int = 2000) -> Analysis:
    """Measure the arms of a study against its baseline, and judge whether they pay.

    Args:
        study: The protocol, the results of its trials, and the calibrated step costs.
        resamples: The resamples of the bootstrap for the percentile intervals; 0 omits them.

    Returns:
        The analysis, which follows from the study alone: the same study gives the same analysis.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: The baseline has no finished reporting trial, a run has two results, or the
            metric is not logged.
    """
    protocol = study.protocol
    calibrated = _Timing.of(study, resamples)
    present = [arm for arm in protocol.arms if calibrated.schedules.get(arm)]
    timings = dict.fromkeys(present, calibrated)
    if not all(map(calibrated.is_calibrated, present)):
        own = _Timing.of(attrs.evolve(study, costs=()), resamples)
        timings.update({arm: own for arm in present if not calibrated.is_calibrated(arm)})
    drafts = {
        arm: _draft(timing.context, arm, timing.schedules[arm]) for arm, timing in timings.items()
    }
    compared = [arm for arm in drafts if drafts[arm].found.role == "arm"]
    corrected = dict(zip(compared, holm([drafts[arm].evidence.p for arm in compared]), strict=True))
    arms = tuple(
        _judged(timings[arm], draft, corrected[arm], len(compared))
        if arm in corrected
        else draft.found
        for arm, draft in drafts.items()
    )
    noise = _noise_floor(drafts.get(protocol.repeated or ""))
    context = calibrated.context
    return Analysis(
        protocol.metric,
        protocol.mode,
        protocol.clock,
        context.target,
        arms,
        len(compared),
        noise,
        _notes(context, noise, [arm for arm in protocol.arms if arm not in drafts]),
    )


def _target(protocol: Protocol, baseline: Sequence[Schedule]) -> Target:
    started = [one for one in baseline if any(value is not None for value in one.finals.values())]
    if not started:
        errors = sorted({run.error for one in baseline for run in one.runs.values() if run.error})
        raise ValueError(
            f"the baseline {protocol.baseline!r} has no finished reporting trial to compare with"
            + (f": {errors[0]}" if errors else ".")
        )
    if protocol.target is not None:
        return Target(protocol.target)
    longest = ([one for one in started if one.complete] or started)[-1]
    values = [value for value in longest.finals.values() if value is not None]
    return Target(fmean(sorted(values)), longest.duration)


def _role(protocol: Protocol, arm: str) -> Literal["baseline", "repeated", "arm"]:
    if arm == protocol.baseline:
        return "baseline"
    return "repeated" if arm == protocol.repeated else "arm"


def _draft(context: Context, arm: str, schedules: tuple[Schedule, ...]) -> _Draft:
    protocol = context.protocol
    role = _role(protocol, arm)
    pairs = pair_seeds(context.baseline, schedules, role == "repeated")
    cost, cost_error = compare_step_costs(context, schedules)
    base_curve = curve_of(context.baseline, [one for one, _ in pairs], context.sign)
    curve = curve_of(schedules, [one for _, one in pairs], context.sign)
    base_crossing, _ = find_crossings(context, context.baseline, None, pairs, 0.0)
    crossing, spread = find_crossings(context, schedules, base_crossing, pairs, cost_error)
    times = _compare(context, base_curve, curve, cost_error)
    evidence = _evidence(context, base_curve, curve, times, (base_crossing, crossing), cost_error)
    qualities = tuple(find_quality(context, one, pairs) for one in schedules)
    time = find_time(context, qualities, base_curve, curve, times)
    is_baseline = role == "baseline"
    if is_baseline:
        time, crossing = attrs.evolve(time, ratio=None), attrs.evolve(crossing, ratio=None)
        qualities = tuple(attrs.evolve(one, difference=None) for one in qualities)
    found = ArmAnalysis(
        arm,
        role,
        protocol.chosen.get(arm, {}),
        qualities,
        time,
        crossing,
        schedules[-1].seconds / max(steps_of(schedules[-1]), 1),
        None if is_baseline else cost,
        None if is_baseline else find_power(times, spread, crossing, len(pairs)),
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


def _judged(timing: _Timing, draft: _Draft, p: float | None, compared: int) -> ArmAnalysis:
    case = Case(
        draft.evidence,
        p,
        compared,
        timing.context.target.value,
        draft.facts,
        timing.baseline,
        draft.found.step_cost_ratio,
    )
    verdict, why = judge(case)
    return attrs.evolve(draft.found, p=p, verdict=verdict, why=why)


def _compare(
    context: Context, baseline: Curve | None, arm: Curve | None, cost_error: float
) -> TimeComparison | None:
    if baseline is None or arm is None:
        return None
    return compare_times(baseline, arm, context.level, cost_error, context.resamples)


def _evidence(
    context: Context,
    baseline: Curve | None,
    arm: Curve | None,
    times: TimeComparison | None,
    crossings: tuple[CrossingTimes, CrossingTimes],
    cost_error: float,
) -> Evidence:
    if baseline is None or arm is None:
        return Evidence("none", None, 0.0, 0)
    pairs = len(arm.results[0])
    several = max(len(baseline.log_times), len(arm.log_times)) > 1
    if several and times is not None:
        return Evidence("time", times.ratio.p, times.gain, pairs)
    ratio = crossings[1].ratio
    all_reached = all(one.reached == one.runs for one in crossings)
    if not context.target.estimated and all_reached and ratio and ratio.value is not None:
        return Evidence("crossing", ratio.p, log(ratio.value), ratio.seeds)
    easy = context.level is not None and crossing_time(baseline, context.level) == -inf
    equal_time = compare_times(baseline, arm, None, cost_error)
    if equal_time is None or (easy and len(baseline.log_times) > 1):
        return Evidence("none", None, 0.0, pairs)
    return Evidence("quality", equal_time.ratio.p, equal_time.gain, pairs)


def _noise_floor(repeated: _Draft | None) -> Estimate | None:
    if repeated is None:
        return None
    if repeated.found.time.ratio is not None:
        return repeated.found.time.ratio
    # A ratio over the pairs that reached the target would ignore the others.
    return repeated.found.crossing.ratio if repeated.evidence.kind == "crossing" else None


def _arm_notes(context: Context, arm: str, schedules: Sequence[Schedule]) -> tuple[str, ...]:
    notes = edge_notes(context.protocol, arm)
    for schedule in schedules:
        runs = schedule.runs.values()
        lost = sorted({_cause(run) for run in runs if run.outcome != "finished"})
        missing = sum(value is None for value in schedule.finals.values())
        if missing:
            how = f" ({'; '.join(lost)})" if lost else " (the result is not finite)"
            notes.append(
                f"{missing} of {len(runs)} runs of {schedule.duration} did not finish{how}: "
                "they count as not reaching the target"
            )
    if any(one.cost is None for one in schedules):
        notes.append(
            "the step cost is not calibrated: times are the seconds of the trials themselves, for "
            "the baseline as well"
        )
    return tuple(notes)


def _cause(run: TrialResult) -> str:
    """Return the outcome of a run, and the first line of its error."""
    lines = (run.error or "").splitlines()
    return f"{run.outcome}: {lines[0]}" if lines else run.outcome


def _notes(context: Context, noise: Estimate | None, absent: Sequence[str]) -> tuple[str, ...]:
    notes = list(context.protocol.notes)
    if context.target.estimated:
        longest = context.target.duration == context.protocol.durations[-1]
        schedule = "its longest schedule" if longest else context.target.duration
        notes.append(
            f"the target is the baseline's mean final result on {schedule}: it is estimated from "
            "the same runs, and the intervals include its uncertainty"
        )
    if noise is not None and noise.p is not None and noise.p < 0.05:
        notes.append(
            f"the baseline differs from itself with other seeds: {show_estimate(noise)}; with a "
            "correct procedure this happens once in 20 comparisons, so distrust small effects"
        )
    if len(context.protocol.seeds) < MINIMAL_SEEDS:
        notes.append(f"fewer than {MINIMAL_SEEDS} seeds: there are no verdicts")
    notes += [f"arm {arm!r} has no reporting trial" for arm in absent]
    return tuple(notes)
