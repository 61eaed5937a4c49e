"""The tables and sentences of a comparison, which every form of it shows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from composable.comparison.analysis.findings import (
    Analysis,
    ArmAnalysis,
    Estimate,
    Quality,
    Verdict,
)
from composable.comparison.analysis.verdicts import show_number
from composable.comparison.records import Study, TrialResult
from composable.core._printable import printable

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "NOTHING",
    "arms_table",
    "costs_table",
    "failures_table",
    "headline",
    "notes",
    "protocol_table",
    "sentences",
    "summary",
    "tuning_table",
    "verdict_name",
]

NOTHING = "–"
"""Shown for a number that the trials do not determine."""


def _frame(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "DataFrame":
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError(
            "The tables of a comparison need pandas: pip install composable[compare]. It is an "
            "extra, which the library does not install by default."
        ) from error
    cells = [[printable(cell) for cell in row] for row in rows]
    return DataFrame(cells, columns=[printable(one) for one in columns], dtype=object)


def arms_table(analysis: Analysis) -> "DataFrame":
    """Return the speed-up and the verdict of each arm."""
    columns = ("arm", "speed-up", "worst to best result", "covered", "p", "verdict")
    rows = [
        (
            arm.arm,
            "" if arm.role == "baseline" else _estimate(arm.speedup),
            " ".join(_ratio(point.speedup.value) for point in arm.at_results[::2]),
            "" if arm.role == "baseline" else f"{arm.covered:.0%}",
            _p(arm.p),
            verdict_name(arm),
        )
        for arm in analysis.arms
    ]
    return _frame(columns, rows)


def costs_table(study: Study, analysis: Analysis) -> "DataFrame":
    """Return the settings, the final results and the costs of each arm."""
    columns = ("arm", "final result", "step", "step / baseline", "set-up", "detectable", "seeds")
    rows = []
    for arm in analysis.arms:
        last = arm.qualities[-1]
        ratio = "" if arm.role == "baseline" else _estimate(arm.step_cost_ratio)
        setup = _seconds(_mean_setup(study, arm.arm, last.duration))
        final = f"{_final(last)} at {last.duration}"
        rows.append((arm.arm, final, _seconds(arm.step_cost), ratio, setup, *_power(arm)))
    return _frame(columns, rows)


def tuning_table(study: Study) -> "DataFrame":
    """Return the tuning trials."""
    protocol = study.protocol
    columns = ("arm", "settings", "schedule", "seed", protocol.tuning_metric, "outcome", "")
    rows = [
        (*_trial(one), _tuned_on(one, protocol.tuning_metric), one.outcome, _mark(study, one))
        for one in study.results
        if one.trial.purpose == "tuning"
    ]
    return _frame(columns, rows)


def failures_table(study: Study) -> "DataFrame":
    """Return the trials that did not finish."""
    columns = ("arm", "settings", "schedule", "seed", "outcome", "batches", "error")
    rows = [
        (*_trial(one), one.outcome, str(one.batches), (one.error or NOTHING)[:2000])
        for one in study.results
        if one.outcome != "finished"
    ]
    return _frame(columns, rows)


def protocol_table(study: Study) -> "DataFrame":
    """Return how the comparison was made, and with which versions."""
    protocol = study.protocol
    better = "higher" if protocol.mode == "max" else "lower"
    facts = {
        "arms": ", ".join(protocol.arms),
        "settings": "; ".join(f"{arm}: {_settings(one)}" for arm, one in protocol.chosen.items()),
        "tried": "; ".join(f"{arm}: {_settings(one)}" for arm, one in protocol.grids.items()),
        "metric": f"{protocol.metric} ({better} is better), tuned on {protocol.tuning_metric}",
        "target": NOTHING if protocol.target is None else f"{protocol.target:g}",
        "schedules": ", ".join(protocol.durations),
        **{f"schedules of {arm}": ", ".join(own) for arm, own in protocol.own_durations.items()},
        "reporting seeds": ", ".join(map(str, protocol.seeds)),
        "tuning seeds": ", ".join(map(str, protocol.tuning_seeds)) or NOTHING,
        "clock": "CPU seconds of one thread" if protocol.clock == "cpu" else "wall clock",
        "command": protocol.command or NOTHING,
        **protocol.versions,
    }
    return _frame(("", " "), facts.items())


# --- sentences ---


def headline(study: Study, analysis: Analysis) -> str:
    """Return the main finding in one sentence."""
    baseline = study.protocol.baseline
    paying = [arm for arm in analysis.arms if arm.verdict is Verdict.PAYS]
    if not paying:
        return f"No evidence that an arm trains faster than {baseline}"
    best = max(paying, key=lambda arm: arm.at_least or (arm.speedup and arm.speedup.low) or 0.0)
    goal = "" if analysis.target is None else f" to {analysis.metric} {analysis.target:g}"
    if best.at_least is not None:
        return f"{best.arm} trains at least {_ratio(best.at_least)} as fast as {baseline}{goal}"
    return f"{best.arm} trains {_estimate(best.speedup)} as fast as {baseline}{goal}"


def summary(study: Study) -> str:
    """Return the metric, and the numbers of seeds and trials."""
    protocol, purposes = study.protocol, [one.trial.purpose for one in study.results]
    better = "higher" if protocol.mode == "max" else "lower"
    seeds = len(protocol.seeds)
    unfinished = sum(one.outcome != "finished" for one in study.results)
    failed = f", {unfinished} of which did not finish" if unfinished else ""
    return (
        f"{protocol.metric} ({better} is better); {seeds} seed{'s' * (seeds != 1)}, "
        f"{purposes.count('reporting')} reporting and {purposes.count('tuning')} tuning "
        f"trials{failed}; {'CPU ' * (protocol.clock == 'cpu')}seconds of training"
    )


def sentences(analysis: Analysis) -> list[str]:
    """Return the verdict on each arm with its reason, and the noise floor."""
    judged = [arm for arm in analysis.arms if arm.verdict is not None]
    floor = "not measured"
    if analysis.noise_floor is not None:
        floor = f"the baseline against itself with other seeds, {_estimate(analysis.noise_floor)}"
    return [
        *(f"{arm.arm}: {arm.verdict.value}; {arm.why}" for arm in judged if arm.verdict),
        f"Noise floor: {floor}",
    ]


def notes(analysis: Analysis) -> list[str]:
    """Return the warnings about the comparison and its arms, without repetitions."""
    by_arm = [f"{arm.arm}: {note}" for arm in analysis.arms for note in arm.notes]
    return list(dict.fromkeys([*analysis.notes, *by_arm]))


def verdict_name(arm: ArmAnalysis) -> str:
    """Return the verdict of an arm, or its role."""
    if arm.verdict is None:
        return {"baseline": "baseline", "repeated": "A/A"}.get(arm.role, NOTHING)
    if arm.at_least is None:
        return arm.verdict.value
    return f"{arm.verdict.value}, {'≥' if arm.at_least > 1 else '≤'} {_ratio(arm.at_least)}"


# --- cells ---


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _estimate(estimate: Estimate | None) -> str:
    """Return a ratio with its interval, such as "2.05x (1.80–2.33)"; bounds may be open."""
    if estimate is None:
        return NOTHING
    low, high = estimate.low, estimate.high
    if estimate.value is not None:
        bounds = "" if low is None or high is None else _three_digits(low) + "–"
        return _ratio(estimate.value) + (f" ({bounds}{_three_digits(high)})" if high else "")
    return NOTHING if low is high is None else f"≥ {_ratio(low)}" if low else f"≤ {_ratio(high)}"


def _p(p: float | None) -> str:
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or NOTHING


def _final(quality: Quality) -> str:
    """Return the mean final result with its 95 % interval, such as "0.956 ± 0.012"."""
    if quality.mean is None:
        finished = sum(value is not None for value in quality.results.values())
        return f"{finished} of {len(quality.results)} finished"
    half = 0.0 if quality.low is None or quality.high is None else (quality.high - quality.low) / 2
    if not half:
        return show_number(quality.mean)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 8)
    return f"{quality.mean:.{decimals}f} ± {half:.{decimals}f}"


def _seconds(seconds: float | None) -> str:
    """Return a time in a unit of its size."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    scale, unit = (1e3, "ms") if 0 < seconds < 1 else (1.0, "s")
    if seconds >= 120:
        scale, unit = (1 / 60, "min") if seconds < 7200 else (1 / 3600, "h")
    return f"{_three_digits(seconds * scale)} {unit}"


def _mean_setup(study: Study, arm: str, duration: str) -> float | None:
    """Return the mean seconds of set-up, compilation and first steps of the finished runs."""
    runs = [
        one.seconds.setup + one.seconds.warmup
        for one in study.results
        if (one.trial.arm, one.trial.duration) == (arm, duration)
        and one.trial.purpose == "reporting"
        and one.outcome == "finished"
    ]
    return fmean(runs) if runs else None


def _power(arm: ArmAnalysis) -> tuple[str, str]:
    if arm.power is None:
        return NOTHING, NOTHING
    needed = arm.power.seeds_for_observed
    return _ratio(arm.power.detectable), ">1000" if needed is None else str(needed)


def _trial(result: TrialResult) -> tuple[str, ...]:
    trial = result.trial
    return trial.arm, _settings(trial.settings), trial.duration, str(trial.seed)


def _tuned_on(result: TrialResult, metric: str) -> str:
    value = result.curve[-1].metrics.get(metric) if result.curve else None
    return NOTHING if value is None else f"{value:.4g}"


def _mark(study: Study, result: TrialResult) -> str:
    chosen = study.protocol.chosen.get(result.trial.arm, {})
    return "chosen" if sorted(result.trial.settings.items()) == sorted(chosen.items()) else ""
