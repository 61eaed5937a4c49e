"""The analysis of a study, from its reporting trials alone.

Costs come from the measured steps, so that a busy machine does not decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import exp, inf, isfinite, log
from statistics import fmean
from typing import Any

import numpy as np

from composable.comparison.records import (
    AMOUNT,
    Protocol,
    StepCost,
    Study,
    TrialResult,
    stop_at_best,
)
from composable.comparison.statistics import (
    CONTRAST,
    CostCurve,
    DistanceKind,
    LogInterval,
    VariancePart,
    cost_error,
    extension,
    holm,
    intervals_of,
    mean_interval,
    measure,
    rounds_error,
    shares_of,
)
from composable.comparison.verdict import (
    COVERED,
    LEVEL,
    MINIMAL_SEEDS,
    Analysis,
    ArmAnalysis,
    Estimate,
    Quality,
    SpeedupAt,
    judge,
    show_number,
)
from composable.core.time import Time, TimeUnit


def analyze(study: Study) -> Analysis:
    """Measure the arms of a study against its baseline, and judge whether they pay.

    The analysis follows from the study alone: the same study gives the same analysis.

    Raises:
        ValueError: The baseline has no finished reporting trial, a run has two results, or the
            metric is not logged.
    """
    protocol, runs = study.protocol, _runs_of(study)
    _check_baseline(study, runs)
    drafts = {arm: _draft(study, arm, runs) for arm in protocol.arms if arm in runs}
    compared = [arm for arm, draft in drafts.items() if draft.role == "arm"]
    noise = drafts[protocol.repeated].speedup if protocol.repeated in drafts else None
    for arm, p in zip(compared, holm([drafts[arm].p for arm in compared]), strict=True):
        drafts[arm] = judge(drafts[arm], protocol, p, len(compared), noise)
    notes = list(protocol.notes)
    if noise is not None and noise.p is not None and noise.p < LEVEL:
        notes.append(
            f"the baseline differs from itself with other seeds: {noise}; with a correct procedure "
            "this happens once in 20 comparisons, so distrust small effects"
        )
    if len(protocol.seeds) < MINIMAL_SEEDS:
        notes.append(f"fewer than {MINIMAL_SEEDS} seeds: there are no verdicts")
    notes += [f"arm {arm!r} has no reporting trial" for arm in protocol.arms if arm not in drafts]
    return Analysis(tuple(drafts.values()), noise, tuple(notes))


# --- runs ---

Runs = dict[str | float, dict[int, TrialResult]]
"""The reporting trials of an arm by duration, from the shortest on, or amount of data; and seed."""


def _runs_of(study: Study) -> dict[str, Runs]:
    protocol, amounts = study.protocol, study.protocol.data_amounts
    found: dict[tuple[str, str | float | None], dict[int, list[TrialResult]]] = {}
    for result in sorted(study.reported, key=lambda one: one.trial.seed):
        trial = result.trial
        place = trial.data_amount if amounts else trial.duration
        runs = found.setdefault((trial.arm, place), {}).setdefault(trial.seed, [])
        if any(run.trial.duration == trial.duration for run in runs):
            raise ValueError(
                f"study has two reporting results of arm {trial.arm!r}, duration "
                f"{trial.duration!r} and seed {trial.seed}: each run counts once."
            )
        runs.append(result)
    arms: dict[str, Runs] = {
        arm: {
            one: {seed: stop_at_best(protocol, runs) for seed, runs in found[arm, one].items()}
            for one in amounts or durations
            if (arm, one) in found
        }
        for arm, durations in protocol.schedules.items()
    }
    return {arm: runs for arm, runs in arms.items() if runs}


def _check_baseline(study: Study, runs: Mapping[str, Runs]) -> None:
    """Check that the baseline has results, of the metric."""
    protocol = study.protocol
    baseline = [run for seeds in runs.get(protocol.baseline, {}).values() for run in seeds.values()]
    every = (result for result in study.reported if result.trial.arm == protocol.baseline)
    names = {name for run in every for evaluation in run.curve for name in evaluation.metrics}
    if names and protocol.metric not in names:
        raise ValueError(
            f"metric={protocol.metric!r} must be the name of a logged result: one of "
            f"{sorted(names)}."
        )
    if all(_final(run, protocol.metric) is None for run in baseline):
        errors = sorted({run.error for run in baseline if run.error})
        raise ValueError(
            f"the baseline {protocol.baseline!r} has no finished reporting trial to compare with"
            + (f": {errors[0]}" if errors else ".")
        )


def _final(run: TrialResult, metric: str) -> float | None:
    if run.outcome != "finished" or not run.curve:
        return None
    value = run.curve[-1].metrics.get(metric, float("nan"))
    return value if isfinite(value) else None


# --- schedules ---


def _schedules(
    protocol: Protocol, arm: str, runs: Runs, costs: Sequence[StepCost]
) -> list[Quality]:
    schedules = []
    for place, seeds in runs.items():
        amount = None if isinstance(place, str) else place
        every = list(seeds.values())
        duration = every[0].trial.duration
        finished = [run for run in every if run.outcome == "finished"] or every
        own = [run.seconds.training / max(run.batches, 1) for run in finished]
        cost = min(
            costs,
            key=lambda one: (one.duration != duration, one.duration),
            default=StepCost(arm, duration, (0.5,), (tuple(own),)),
        )
        batches = [run.batches for run in finished]
        steps = max(batches) if amount is None else round(fmean(batches))
        finals = {seed: _final(run, protocol.metric) for seed, run in seeds.items()}
        values = [value for value in finals.values() if value is not None]
        complete = len(values) == len(finals)
        low, high = mean_interval(values) if complete else (None, None)
        mean = fmean(values) if complete else None
        schedules.append(Quality(duration, steps, cost, finals, mean, low, high, amount))
    return schedules


def _costs_of(study: Study, arm: str) -> list[StepCost]:
    """Return the measured costs of an arm; the A/A arm may have the baseline's."""
    costs = [cost for cost in study.costs if cost.arm == arm]
    if not costs and arm == study.protocol.repeated:
        return _costs_of(study, study.protocol.baseline)
    return costs


def _curves(
    baseline: Sequence[Quality], arm: Sequence[Quality], sign: int
) -> tuple[CostCurve | None, CostCurve | None, bool]:
    """Return the curves of the baseline and of an arm, and whether their seeds are paired.

    Seeds are paired if both have at least two of them in common: then the curves have those only.
    A schedule on which a run did not finish is not on a curve, and neither is one without cost.
    """
    both = [
        [one for one in each if one.mean is not None and one.extent > 0] for each in (baseline, arm)
    ]
    seeds = [
        set.intersection(*(set(one.results) for one in each)) if each else set() for each in both
    ]
    common = seeds[0] & seeds[1]
    paired = len(common) > 1
    base, other = (
        _curve(each, common if paired else own, sign) for each, own in zip(both, seeds, strict=True)
    )
    return base, other, paired


def _curve(schedules: Sequence[Quality], seeds: set[int], sign: int) -> CostCurve | None:
    """Return the curve; None with fewer than two schedules or two seeds."""
    by_cost = {
        log(schedule.extent): [sign * (schedule.results[seed] or 0.0) for seed in sorted(seeds)]
        for schedule in schedules
    }
    if len(by_cost) < 2 or len(seeds) < 2:
        return None
    costs = sorted(by_cost)
    return CostCurve(np.asarray(costs), np.asarray([by_cost[cost] for cost in costs]))


# --- arms ---


def _draft(study: Study, arm: str, runs: Mapping[str, Runs]) -> ArmAnalysis:
    """Return an arm before the correction over the arms."""
    protocol = study.protocol
    names = (protocol.baseline, arm)
    costs = [_costs_of(study, name) for name in names]
    measured = all(costs)
    baseline, own = (
        _schedules(protocol, name, runs[name], cost if measured else ())
        for name, cost in zip(names, costs, strict=True)
    )
    by_data = bool(protocol.data_amounts)
    error = _cost_error(study, baseline[-1].cost, own[-1].cost)
    ratio = _compare_steps(baseline[-1], own[-1], error)
    is_baseline = arm == protocol.baseline
    return ArmAnalysis(
        arm=arm,
        role="baseline" if is_baseline else "repeated" if arm == protocol.repeated else "arm",
        qualities=tuple(own),
        step_cost=own[-1].seconds / max(own[-1].steps, 1),
        step_cost_ratio=ratio if measured and not is_baseline else None,
        notes=(*_edges(study, arm), *_run_notes(runs[arm], own, measured=measured or by_data)),
        **({} if is_baseline else _distance(protocol, baseline, own, error)),
    )


def _distance(
    protocol: Protocol, baseline: Sequence[Quality], own: Sequence[Quality], error: VariancePart
) -> dict[str, Any]:
    """Return the fields of an arm that follow from the curves."""
    sign = 1 if protocol.mode == "max" else -1
    base, curve, paired = _curves(baseline, own, sign)
    if base is None or curve is None:
        return {}
    level = None if protocol.target is None else sign * protocol.target
    shares = shares_of(base, curve)
    fields: dict[str, Any] = {"shares": shares}
    fields["noisy"] = min(base.contrast, curve.contrast) < CONTRAST
    if level is not None or shares.both < COVERED:
        fields["needs"] = _schedule_to_add(own, extension(base, curve, level))
    found = measure(base, curve, level=level, paired=paired, cost=error)
    if found is None:
        return fields
    fields |= {"p": found.mean.p, "speedup": _estimate(found.mean, found.kind, curve.seeds)}
    if found.kind == "distance":
        fields["curve"] = tuple(
            SpeedupAt(sign * result, _estimate(at, found.kind, curve.seeds))
            for result, at in zip(found.results, found.at, strict=True)
        )
    return fields


def _estimate(log_ratio: LogInterval, kind: DistanceKind, seeds: int) -> Estimate:
    """Return a ratio; one of bounds is open on the other side."""
    value, low, high = (exp(one) for one in log_ratio[:3])
    known = log_ratio.p is not None and kind == "distance"
    return Estimate(
        value if kind == "distance" else None,
        low if known or kind == "at least" else None,
        high if known or kind == "at most" else None,
        log_ratio.p,
        seeds,
    )


def _cost_error(study: Study, baseline: StepCost, arm: StepCost) -> VariancePart:
    """Return the error of the log ratio of step costs, from as many processes as both have."""
    if baseline == arm or study.protocol.data_amounts:
        return VariancePart(0.0, 1)
    if 1 < baseline.processes == arm.processes:
        both = [cost for cost in study.costs if cost.processes == arm.processes]
        seconds = [np.asarray(one.process_seconds) for one in both]
        if all(second.min() > 0 for second in seconds):  # a clock may be coarser than a block
            logs = np.asarray([np.log(second).mean(axis=0) for second in seconds])
            return cost_error(logs, both.index(baseline), both.index(arm))
    return rounds_error(baseline.seconds, arm.seconds)


def _compare_steps(base: Quality, arm: Quality, error: VariancePart) -> Estimate | None:
    if not all(quality.seconds and quality.steps for quality in (base, arm)):
        return None
    value = log(arm.seconds / arm.steps * base.steps / base.seconds)
    (ratio,) = intervals_of(np.full((1, 1), value), [error])
    return _estimate(ratio, "distance", len(arm.cost.seconds[0]))


def _schedule_to_add(schedules: Sequence[Quality], factor: float | None) -> str | None:
    """Return the length of a schedule, or the amount, beyond the least or the most of them."""
    if factor is None:
        return None
    end = schedules[0 if factor < 1 else -1]
    if end.amount is not None:
        most = 1.0 if end.amount <= 1 else inf  # a share is at most all of the data
        amount = min(end.amount * factor, most)
        return None if amount == end.amount else show_number(amount)
    time = Time.parse(end.duration)
    value = float(time.value) * factor
    if time.unit in (TimeUnit.DURATION, TimeUnit.SECOND):
        return str(Time(Fraction(f"{value:.2g}"), time.unit))
    added = str(Time(max(1, round(value)), time.unit))
    return None if added in [schedule.duration for schedule in schedules] else added


# --- notes ---


def _run_notes(runs: Runs, schedules: Sequence[Quality], *, measured: bool) -> Iterator[str]:
    for place, schedule in zip(runs, schedules, strict=True):
        missing = list(schedule.results.values()).count(None)
        lost = {
            ": ".join([run.outcome, *(run.error or "").splitlines()[:1]])
            for run in runs[place].values()
            if run.outcome != "finished"
        }
        if missing:
            yield (
                f"{missing} of {len(schedule.results)} runs of {place} did not finish "
                f"({'; '.join(sorted(lost)) or 'the result is not finite'}): this "
                f"{'schedule' if schedule.amount is None else 'amount'} is not part of the curve"
            )
    if not measured:
        yield (
            "the step cost is not measured: times are the seconds of the trials themselves, for "
            "the baseline as well"
        )


def _edges(study: Study, arm: str) -> Iterator[str]:
    """Yield a warning for each chosen number that is the lowest or highest of its grid.

    Not for a lowest value of 0, which most often turns something off.
    """
    own = [result.trial.settings for result in study.reported if result.trial.arm == arm]
    by_amount = {settings.get(AMOUNT): settings for settings in own}
    every = [by_amount[one] for one in study.protocol.data_amounts or [None] if one in by_amount]
    amounts: dict[str, list[str]] = {}
    for settings, (name, values) in product(every, study.protocol.grids.get(arm, {}).items()):
        chosen = settings.get(name)
        numbers = sorted(
            {one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)}
        )
        if len(numbers) < max(2, len(set(map(repr, values)))) or chosen not in numbers:
            continue
        is_lowest = chosen == numbers[0] != 0
        if is_lowest or chosen == numbers[-1]:
            end, beyond = ("lowest", "lower") if is_lowest else ("highest", "higher")
            note = (
                f"{name}={chosen!r} is the {end} value that was tried: a {beyond} one may be better"
            )
            amounts.setdefault(note, []).append(f"{settings.get(AMOUNT)}")
    for note, found in amounts.items():
        at = f" ({AMOUNT}={', '.join(found)})" if study.protocol.data_amounts else ""
        yield note + at
