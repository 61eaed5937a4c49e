"""The analysis of a study: speed-ups, intervals and verdicts, from its reporting trials alone.

The times are those of the measured step costs, so that a busy machine does not decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import exp, sqrt
from statistics import fmean
from typing import Any, Literal

import attrs

from composable.comparison.analysis.curves import (
    Schedule,
    compare_step_costs,
    curves_of,
    schedules_of,
)
from composable.comparison.analysis.distance import (
    CONTRAST,
    Distance,
    Shares,
    extension,
    measure,
    shares_of,
)
from composable.comparison.analysis.findings import (
    Analysis,
    ArmAnalysis,
    Estimate,
    Power,
    Quality,
    SpeedupAt,
    Verdict,
)
from composable.comparison.analysis.statistics import Interval, Part, holm, mean_interval, power_of
from composable.comparison.analysis.verdicts import (
    COVERED,
    MINIMAL_SEEDS,
    Case,
    judge,
    show_estimate,
    show_number,
)
from composable.comparison.records import Protocol, Study, TrialResult
from composable.core.time import Time, TimeUnit

__all__ = ["analyze"]

_NO_SHARES = Shares(0.0, 0.0, 0.0)
_TWO = (
    "needs at least two schedules on which all runs finished, such as "
    'durations=["5ep", "10ep", "20ep"], and two seeds'
)


@attrs.frozen
class _Draft:
    """An arm before the correction over the arms."""

    found: ArmAnalysis
    distance: Distance | None
    shares: Shares
    noisy: bool
    """Whether the results of a curve's schedules differ by too little for their noise."""


def analyze(study: Study) -> Analysis:
    """Measure the arms of a study against its baseline, and judge whether they pay.

    Args:
        study: The protocol, the results of its trials, and the measured step costs.

    Returns:
        The analysis, which follows from the study alone: the same study gives the same analysis.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: The baseline has no finished reporting trial, a run has two results, or the
            metric is not logged.
    """
    protocol = study.protocol
    measured = schedules_of(study)
    _check_baseline(protocol, measured.get(protocol.baseline, ()))
    own = schedules_of(attrs.evolve(study, costs=()))
    drafts = {}
    for arm in protocol.arms:
        if measured.get(arm):
            is_measured = all(
                one.cost is not None for one in (*measured[protocol.baseline], *measured[arm])
            )
            drafts[arm] = _draft(protocol, arm, measured if is_measured else own)
    compared = [arm for arm in drafts if drafts[arm].found.role == "arm"]
    corrected = dict(zip(compared, holm([drafts[arm].found.p for arm in compared]), strict=True))
    arms = tuple(
        _judged(protocol, draft, corrected[arm], len(compared)) if arm in corrected else draft.found
        for arm, draft in drafts.items()
    )
    repeated = drafts.get(protocol.repeated or "")
    noise = None if repeated is None else repeated.found.speedup
    return Analysis(
        protocol.metric,
        protocol.mode,
        protocol.clock,
        protocol.target,
        arms,
        len(compared),
        noise,
        _notes(protocol, noise, [arm for arm in protocol.arms if arm not in drafts]),
    )


def _check_baseline(protocol: Protocol, schedules: Sequence[Schedule]) -> None:
    if not any(value is not None for one in schedules for value in one.finals.values()):
        errors = sorted({run.error for one in schedules for run in one.runs.values() if run.error})
        raise ValueError(
            f"the baseline {protocol.baseline!r} has no finished reporting trial to compare with"
            + (f": {errors[0]}" if errors else ".")
        )


def _role(protocol: Protocol, arm: str) -> Literal["baseline", "repeated", "arm"]:
    if arm == protocol.baseline:
        return "baseline"
    return "repeated" if arm == protocol.repeated else "arm"


def _draft(protocol: Protocol, arm: str, every: Mapping[str, Sequence[Schedule]]) -> _Draft:
    schedules, sign = every[arm], 1 if protocol.mode == "max" else -1
    base, curve, paired = curves_of(every[protocol.baseline], schedules, sign)
    role = _role(protocol, arm)
    cost, error = compare_step_costs(every[protocol.baseline], schedules)
    level = None if protocol.target is None else sign * protocol.target
    distance, shares, needs, noisy = None, _NO_SHARES, None, False
    if base is not None and curve is not None and role != "baseline":
        distance = measure(base, curve, level=level, paired=paired, cost=error)
        shares = shares_of(base, curve)
        noisy = min(base.contrast, curve.contrast) < CONTRAST
        if level is not None or shares.both < COVERED:
            needs = _schedule_to_add(schedules, extension(base, curve, level))
    seeds = 0 if curve is None else curve.seeds
    found = ArmAnalysis(
        arm=arm,
        role=role,
        settings=protocol.chosen.get(arm, {}),
        qualities=tuple(map(_quality, schedules)),
        speedup=None if distance is None else _estimate(distance.mean, distance.kind, seeds),
        curve=() if distance is None else tuple(_points(distance, sign, seeds)),
        covered=1.0 if role == "baseline" else shares.both,
        at_least=None,
        needs=needs,
        step_cost=schedules[-1].seconds / max(schedules[-1].steps, 1),
        step_cost_ratio=None if role == "baseline" else cost,
        power=None if distance is None else _power(distance, error, seeds),
        p=None if distance is None else distance.mean.p,
        verdict=None,
        why="",
        notes=tuple(_arm_notes(protocol, arm, schedules)),
    )
    return _Draft(found, distance, shares, noisy)


def _estimate(log_ratio: Interval, kind: str, seeds: int) -> Estimate:
    """Return a ratio; one of bounds is open on the other side."""
    value, low, high = (exp(one) for one in log_ratio[:3])
    if log_ratio.p is None and kind == "distance":
        return Estimate(value, None, None, None, seeds)
    return Estimate(
        value if kind == "distance" else None,
        None if kind == "at most" else low,
        None if kind == "at least" else high,
        log_ratio.p,
        seeds,
    )


def _points(distance: Distance, sign: int, seeds: int) -> list[SpeedupAt]:
    if distance.kind != "distance":
        return []
    return [
        SpeedupAt(sign * result, _estimate(one, "distance", seeds))
        for result, one in zip(distance.results, distance.at, strict=True)
    ]


def _power(distance: Distance, error: Part, seeds: int) -> Power | None:
    if distance.kind != "distance" or distance.mean.p is None:
        return None
    return power_of(distance.pair, sqrt(error.variance), seeds, distance.mean.value)


def _quality(schedule: Schedule) -> Quality:
    values = [value for value in schedule.finals.values() if value is not None]
    low, high = mean_interval(values) if schedule.complete else (None, None)
    mean = fmean(values) if schedule.complete else None
    return Quality(schedule.duration, schedule.seconds, schedule.finals, mean, low, high)


def _schedule_to_add(schedules: Sequence[Schedule], factor: float | None) -> str | None:
    """Return the length of a schedule beyond the shortest or the longest one."""
    if factor is None:
        return None
    time = Time.parse(schedules[0 if factor < 1 else -1].duration)
    value = float(time.value) * factor
    if time.unit in (TimeUnit.DURATION, TimeUnit.SECOND):
        return str(Time(Fraction(f"{value:.2g}"), time.unit))
    added = Time(max(1, round(value)), time.unit)
    return None if str(added) in [one.duration for one in schedules] else str(added)


def _judged(protocol: Protocol, draft: _Draft, p: float | None, compared: int) -> ArmAnalysis:
    found = draft.found
    if draft.distance is None or found.speedup is None:
        why = _why_not(protocol, draft)
        return attrs.evolve(found, verdict=Verdict.NO_EVIDENCE, why=why)
    distance, target = draft.distance, protocol.target
    case = Case(found, found.speedup, distance.kind, draft.shares, target, p, compared)
    verdict, bound, why = judge(case)
    return attrs.evolve(found, p=p, verdict=verdict, at_least=bound, why=why)


def _why_not(protocol: Protocol, draft: _Draft) -> str:
    """Return why there is no speed-up."""
    needs = draft.found.needs
    if draft.shares is _NO_SHARES:
        return _TWO
    if draft.noisy:
        return (
            "the results of its schedules, or of the baseline's, differ by too little for their "
            "noise: add shorter schedules, or seeds"
        )
    if protocol.target is None:
        reason = "its curve and the baseline's hardly reach the same results"
    else:
        reason = f"its curve and the baseline's end before {show_number(protocol.target)}"
    return f"{reason}; add its schedule of {needs}" if needs else reason


def _arm_notes(protocol: Protocol, arm: str, schedules: Sequence[Schedule]) -> Iterator[str]:
    yield from _edges(protocol, arm)
    for schedule in schedules:
        runs = schedule.runs.values()
        lost = sorted({_cause(run) for run in runs if run.outcome != "finished"})
        missing = sum(value is None for value in schedule.finals.values())
        if missing:
            how = f" ({'; '.join(lost)})" if lost else " (the result is not finite)"
            yield (
                f"{missing} of {len(runs)} runs of {schedule.duration} did not finish{how}: "
                "this schedule is not part of the curve"
            )
    if any(one.cost is None for one in schedules):
        yield (
            "the step cost is not measured: times are the seconds of the trials themselves, for "
            "the baseline as well"
        )


def _cause(run: TrialResult) -> str:
    """Return the outcome of a run, and the first line of its error."""
    lines = (run.error or "").splitlines()
    return f"{run.outcome}: {lines[0]}" if lines else run.outcome


def _edges(protocol: Protocol, arm: str) -> Iterator[str]:
    """Yield a warning for each chosen number that is the lowest or highest of its grid."""
    for name, values in protocol.grids.get(arm, {}).items():
        chosen = protocol.chosen.get(arm, {}).get(name)
        numbers = sorted({value for value in values if _is_number(value)})
        if len(numbers) < max(2, len(set(map(repr, values)))) or chosen not in numbers:
            continue
        if chosen in (numbers[0], numbers[-1]):
            end, beyond = ("lowest", "lower") if chosen == numbers[0] else ("highest", "higher")
            yield (
                f"{name}={chosen!r} is the {end} value that was tried: a {beyond} one may be better"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _notes(protocol: Protocol, noise: Estimate | None, absent: Sequence[str]) -> tuple[str, ...]:
    notes = list(protocol.notes)
    if noise is not None and noise.p is not None and noise.p < 0.05:
        notes.append(
            f"the baseline differs from itself with other seeds: {show_estimate(noise)}; with a "
            "correct procedure this happens once in 20 comparisons, so distrust small effects"
        )
    if len(protocol.seeds) < MINIMAL_SEEDS:
        notes.append(f"fewer than {MINIMAL_SEEDS} seeds: there are no verdicts")
    notes += [f"arm {arm!r} has no reporting trial" for arm in absent]
    return tuple(notes)
