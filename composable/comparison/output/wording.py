"""Format numbers, intervals and sentences for tables, plots and pages."""

import math
from collections.abc import Mapping
from typing import Any

from composable.comparison.analysis.findings import (
    Analysis,
    ArmAnalysis,
    Estimate,
    Quality,
    Verdict,
)
from composable.comparison.records import Protocol, Study

__all__ = [
    "NOTHING",
    "chosen_quality",
    "clock_seconds",
    "describe_target",
    "format_estimate",
    "format_final",
    "format_number",
    "format_p",
    "format_ratio",
    "format_seconds",
    "format_settings",
    "headline",
    "noise_floor",
    "notes",
    "verdict_name",
    "verdict_sentences",
]

NOTHING = "–"
"""Shown for a number that the trials do not determine."""


# --- numbers ---


def format_number(value: float | None, half_width: float | None = None) -> str:
    """Return a number with the digits that its interval supports, or four without one.

    Args:
        value: The number, or None.
        half_width: Half of its interval.

    Example:
        >>> from composable.comparison.output.wording import format_number
        >>> format_number(0.95612), format_number(0.95612, 0.0123), format_number(1234.5678, 210)
        ('0.9561', '0.956', '1235')
    """
    if value is None:
        return NOTHING
    if not half_width or not math.isfinite(half_width) or not math.isfinite(value):
        return f"{value:.4g}"
    return f"{value:.{_decimals(half_width)}f}"


def _decimals(half_width: float) -> int:
    """Return the decimals with which an interval has two significant digits."""
    return min(max(1 - math.floor(math.log10(half_width)), 0), 8)


def format_final(quality: Quality) -> str:
    """Return the mean final result with its 95 % interval, such as "0.956 ± 0.012"."""
    if quality.mean is None:
        finished = sum(value is not None for value in quality.results.values())
        return f"{finished} of {len(quality.results)} finished"
    if quality.low is None or quality.high is None:
        return format_number(quality.mean)
    half = (quality.high - quality.low) / 2
    shown = format_number(quality.mean, half)
    return f"{shown} ± {format_number(half, half)}" if half > 0 else shown


def format_seconds(seconds: float | None) -> str:
    """Return a time in a unit of its size.

    Example:
        >>> from composable.comparison.output.wording import format_seconds
        >>> [format_seconds(s) for s in (0.00021, 0.0123, 13.84, 200, 8000)]
        ['0.21 ms', '12.3 ms', '13.8 s', '3.33 min', '2.22 h']
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    scale, unit = (1e3, "ms") if 0 < seconds < 1 else (1.0, "s")
    if seconds >= 120:
        scale, unit = (1 / 60, "min") if seconds < 7200 else (1 / 3600, "h")
    return f"{_three_digits(seconds * scale)} {unit}"


def format_ratio(ratio: float | None) -> str:
    """Return a ratio such as "2.05x"."""
    return NOTHING if ratio is None else f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def format_estimate(estimate: Estimate | None) -> str:
    """Return a ratio with its interval, such as "2.05x (1.80–2.33)"; bounds may be open.

    Example:
        >>> from composable.comparison.analysis.findings import Estimate
        >>> from composable.comparison.output.wording import format_estimate
        >>> format_estimate(Estimate(2.05, 1.8, None, 0.01, 5))
        '2.05x (≥ 1.80)'
        >>> format_estimate(Estimate(None, None, 0.8, 0.01, 5))
        '≤ 0.80x'
    """
    if estimate is None:
        return NOTHING
    bounds = _bounds(estimate.low, estimate.high)
    if estimate.value is not None:
        return format_ratio(estimate.value) + (f" ({bounds})" if bounds else "")
    return f"{bounds}x" if bounds else NOTHING


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{_three_digits(low)}–{_three_digits(high)}"
    if low is not None:
        return f"≥ {_three_digits(low)}"
    return f"≤ {_three_digits(high)}" if high is not None else ""


def format_p(p: float | None) -> str:
    """Return a p value; empty without one."""
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return hyperparameters such as "lr=0.002, batch_size=16"."""
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or NOTHING


# --- arms ---


def chosen_quality(arm: ArmAnalysis) -> Quality | None:
    """Return the arm's shortest schedule that passes the target, or else its longest one."""
    passing = [one for one in arm.qualities if one.duration == arm.time.duration]
    return next(iter([*passing, *arm.qualities[-1:]]), None)


def verdict_name(arm: ArmAnalysis) -> str:
    """Return the verdict of an arm, or its role."""
    if arm.verdict is not None:
        return arm.verdict.value
    return {"baseline": "baseline", "repeated": "A/A"}.get(arm.role, NOTHING)


def notes(analysis: Analysis) -> list[str]:
    """Return the warnings about the comparison and its arms, without repetitions."""
    by_arm = [f"{arm.arm}: {note}" for arm in analysis.arms for note in arm.notes]
    return list(dict.fromkeys([*analysis.notes, *by_arm]))


# --- sentences ---


def describe_target(analysis: Analysis, protocol: Protocol) -> str:
    """Return the target and its origin."""
    shown = format_number(analysis.target.value)
    if not analysis.target.estimated:
        return shown
    return f"{shown} (mean final result of {protocol.baseline} on {analysis.target.duration})"


def clock_seconds(protocol: Protocol) -> str:
    """Return the kind of seconds."""
    return "CPU seconds" if protocol.clock == "cpu" else "seconds"


def headline(study: Study, analysis: Analysis) -> str:
    """Return the main finding in one sentence."""
    goal = f"{analysis.metric} {format_number(analysis.target.value)}"
    paying = [arm for arm in analysis.arms if arm.verdict is Verdict.PAYS]
    if paying:
        best = max(paying, key=_speed)
        ratio = best.time.ratio
        if ratio is None or ratio.value is None:
            return f"{best.arm} reaches {goal} in less time than {study.protocol.baseline}"
        return f"{best.arm} reaches {goal} with a speed-up of {format_estimate(ratio)}"
    if not any(arm.crossing.reached for arm in analysis.arms):
        return f"No run reaches {goal}"
    return f"No evidence that an arm reaches {goal} in less time than {study.protocol.baseline}"


def _speed(arm: ArmAnalysis) -> float:
    ratio = arm.time.ratio
    return ratio.value if ratio is not None and ratio.value is not None else 0.0


def verdict_sentences(analysis: Analysis) -> list[str]:
    """Return the verdict on each arm, and its reason."""
    judged = [arm for arm in analysis.arms if arm.verdict is not None]
    return [f"{arm.arm}: {verdict_name(arm)}; {arm.why}" for arm in judged]


def noise_floor(analysis: Analysis) -> str:
    """Return a sentence on the A/A arm."""
    if analysis.noise_floor is None:
        return "Noise floor: not measured (no A/A arm, or no time to target)."
    shown = format_estimate(analysis.noise_floor)
    return f"Noise floor: the baseline against itself with other seeds, {shown}."
