"""Verdicts on arms, and the sentences that give their reasons."""

from typing import Literal

import attrs

from composable.comparison.analysis.findings import (
    CrossingTimes,
    Estimate,
    Quality,
    TimeToTarget,
    Verdict,
)

__all__ = [
    "MINIMAL_SEEDS",
    "ArmFacts",
    "Case",
    "Evidence",
    "judge",
    "show_estimate",
    "show_number",
]

MINIMAL_SEEDS = 3
"""With fewer pairs, the verdict is "no evidence"."""
_LEVEL = 0.05


@attrs.frozen
class Evidence:
    """The test on which a verdict rests.

    - "time": the times at which the mean final results over the schedules reach the target;
    - "crossing": the first crossings of the runs of the longest schedule;
    - "quality": the final results at the baseline's time, by the cost of the steps;
    - "none": too few runs finished, or the baseline's shortest schedule passes the target.
    """

    kind: Literal["time", "crossing", "quality", "none"]
    p: float | None
    gain: float
    """Above 0, the arm is better."""
    pairs: int


@attrs.frozen
class ArmFacts:
    """The measures of an arm or of the baseline that a sentence names."""

    time: TimeToTarget
    crossing: CrossingTimes
    longest: Quality
    reaches: bool
    """Whether the mean of a schedule is at least as good as the target."""


@attrs.frozen
class Case:
    """An arm to judge: its evidence, corrected over the arms, and its measures."""

    evidence: Evidence
    p: float | None
    compared: int
    target: float
    arm: ArmFacts
    baseline: ArmFacts
    step_cost_ratio: Estimate | None


def judge(case: Case) -> tuple[Verdict, str]:
    """Return the verdict on an arm, and the sentence that gives the reason.

    An arm pays if it is better with p < 0.05 after Holm's correction and its mean reaches the
    target; it costs if it is worse and the baseline's mean reaches the target.
    """
    sentence = _SENTENCES[case.evidence.kind](case)
    if case.evidence.pairs < MINIMAL_SEEDS:
        number = case.evidence.pairs
        pairs = "1 pair" if number == 1 else f"{number or 'no'} pairs"
        few = f"{pairs} of finished runs: a verdict needs {MINIMAL_SEEDS} seeds"
        return Verdict.NO_EVIDENCE, f"{sentence}; {few}"
    if case.p is None and case.evidence.kind != "none":
        same = "every seed gives the same difference, so there is no spread to judge by"
        return Verdict.NO_EVIDENCE, f"{sentence}; {same}"
    if case.p is None or case.p >= _LEVEL:
        return Verdict.NO_EVIDENCE, sentence
    if case.evidence.gain > 0 and case.arm.reaches:
        return Verdict.PAYS, sentence
    if case.evidence.gain < 0 and case.baseline.reaches:
        return Verdict.COSTS, sentence
    return Verdict.NO_EVIDENCE, sentence


def show_number(value: float) -> str:
    """Show a number with three significant digits.

    Example:
        >>> from composable.comparison.analysis.verdicts import show_number
        >>> show_number(13.76), show_number(1234.5), show_number(0.00123)
        ('13.8', '1234', '0.00123')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show_estimate(ratio: Estimate) -> str:
    """Show a ratio with its interval; open bounds by words.

    Example:
        >>> from composable.comparison.analysis.findings import Estimate
        >>> from composable.comparison.analysis.verdicts import show_estimate
        >>> show_estimate(Estimate(3.0, 2.6, 3.5, 0.001, 5))
        '3.00x (2.60 to 3.50)'
        >>> show_estimate(Estimate(None, 2.6, None, 0.001, 5))
        'at least 2.60x'
    """
    low, high = ratio.low, ratio.high
    if low is not None and high is not None:
        bounds = f"{low:.2f} to {high:.2f}"
    elif low is not None:
        bounds = f"at least {low:.2f}" if ratio.value is not None else f"at least {low:.2f}x"
    elif high is not None:
        bounds = f"at most {high:.2f}" if ratio.value is not None else f"at most {high:.2f}x"
    else:
        bounds = "no interval"
    return bounds if ratio.value is None else f"{ratio.value:.2f}x ({bounds})"


def _p(case: Case) -> str:
    if case.p is None:
        return ""
    size = "p < 0.0001" if case.p < 0.0001 else f"p = {case.p:.2g}"
    many = f" after Holm's correction over {case.compared} arms" if case.compared > 1 else ""
    return f", {size}{many}"


def _time(case: Case) -> str:
    target, arm, base = show_number(case.target), case.arm.time, case.baseline.time
    against = "" if base.interpolated is None else f" against {show_number(base.interpolated)} s"
    ratio = "" if arm.ratio is None else f": {show_estimate(arm.ratio)}"
    if arm.interpolated is not None:
        return f"reaches {target} in {show_number(arm.interpolated)} s{against}{ratio}{_p(case)}"
    if case.arm.reaches:
        return f"reaches {target} on its shortest schedule already{against}{ratio}{_p(case)}"
    within = show_number(case.arm.longest.seconds)
    sentence = f"mean does not reach {target} within {within} s{against}{ratio}{_p(case)}"
    own = case.arm.longest.duration != case.baseline.longest.duration
    if own and base.interpolated is not None and case.arm.longest.seconds < base.interpolated:
        return f"{sentence}; its schedules end before that time: add longer ones"
    return sentence


def _crossing(case: Case) -> str:
    arm, base = case.arm.crossing, case.baseline.crossing
    means = [show_number(one.mean) for one in (arm, base) if one.mean is not None]
    ratio = "" if arm.ratio is None else f": {show_estimate(arm.ratio)}"
    return (
        f"runs of {case.arm.longest.duration} first reach {show_number(case.target)} after "
        f"{' s against '.join(means)} s{ratio}{_p(case)}"
    )


def _quality(case: Case) -> str:
    parts = [
        f"{_reached(case.arm.crossing)} {show_number(case.target)} within "
        f"{show_number(case.arm.crossing.within)} s, and "
        f"{case.baseline.crossing.reached} of {case.baseline.crossing.runs} of the baseline's"
    ]
    if not case.arm.reaches and not case.baseline.reaches:
        parts.append("neither mean reaches it, so there is no statement about the time")
    elif case.arm.crossing.reached < case.arm.crossing.runs:
        parts.append("no statement about the time")
    arm, base = case.arm.longest, case.baseline.longest
    if arm.mean is not None and base.mean is not None:
        parts.append(f"mean final result {_means(case, arm, base)}{_p(case)}")
    return "; ".join(parts)


def _means(case: Case, arm: Quality, base: Quality) -> str:
    """Return the results that the test compares: those nearest to the baseline's time."""
    if arm.mean is None or base.mean is None:
        return ""
    means, cost = (show_number(arm.mean), show_number(base.mean)), case.step_cost_ratio
    if arm.duration == base.duration:
        dear = "" if cost is None or cost.value is None else f" at {cost.value:.2f}x the step cost"
        return f"{means[0]} against {means[1]}{dear}"
    seconds = show_number(arm.seconds), show_number(base.seconds)
    if arm.seconds <= base.seconds:
        return f"{means[0]} after {seconds[0]} s against {means[1]} after {seconds[1]} s"
    gain = "better" if case.evidence.gain > 0 else "worse"
    difference = show_number(abs(case.evidence.gain))
    return f"{difference} {gain} at the time nearest to the baseline's {seconds[1]} s"


def _none(case: Case) -> str:
    for name, facts in (("", case.arm), ("baseline ", case.baseline)):
        results = facts.longest.results.values()
        failed = sum(one is None for one in results)
        if failed:
            return (
                f"{failed} of {len(results)} {name}runs of {facts.longest.duration} did not "
                "finish and count as not reaching the target; no statement about the time"
            )
    return (
        f"{_reached(case.arm.crossing)} {show_number(case.target)}; the baseline's shortest "
        "schedule passes it already: compare shorter schedules, or set a harder target"
    )


def _reached(crossing: CrossingTimes) -> str:
    return f"{crossing.reached} of {crossing.runs} runs reached"


_SENTENCES = {"time": _time, "crossing": _crossing, "quality": _quality, "none": _none}
