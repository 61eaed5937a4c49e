"""The rule by which the documentation claims that an arm pays, or does not.

`compare` judges an arm by its interval. A claim needs more: a tuned baseline, an A/A arm that
agrees with the baseline and is more precise than the effect, and results that counting does not
reach. An arm that lacks one of these has no claim on any page, and the reason in its place.
"""

from collections.abc import Mapping
from math import log
from typing import NamedTuple

import attrs

from composable.comparison import Comparison
from composable.comparison.verdict import Analysis, ArmAnalysis, Verdict

__all__ = ["REFUSED", "Counted", "claimed", "refusal"]

REFUSED = "no claim"


class Counted(NamedTuple):
    """The best result of a table of counts."""

    name: str
    result: float
    seconds: float


def refusal(
    comparison: Comparison, arm: ArmAnalysis, untuned: str = "", counted: Counted | None = None
) -> str | None:
    """Return why an arm that pays has no claim; None if it has one.

    Args:
        comparison: The comparison.
        arm: The analysis of the arm.
        untuned: What of the baseline was not tuned.
        counted: What counting reaches, on the same data.
    """
    if untuned:
        return f"the baseline is not tuned: {untuned}"
    noise, effect = comparison.analysis.noise_floor, _effect(arm)
    if noise is None or noise.low is None or noise.high is None:
        return "the baseline was not compared with itself"
    if not noise.low <= 1 <= noise.high:
        return f"the baseline differs from itself with other seeds: {noise}"
    if log(noise.high / noise.low) > abs(log(effect)):
        return f"the interval of the baseline against itself, {noise}, is wider than the effect"
    best = _best_result(comparison, arm)
    sign = 1 if comparison.study.protocol.mode == "max" else -1
    if counted is not None and sign * best < sign * counted.result:
        return (
            f"{counted.name} reach {counted.result:.3f} in {counted.seconds:.0f} CPU seconds of "
            f"counting, and the best result that both arms reach is {best:.3f}"
        )
    return None


def _effect(arm: ArmAnalysis) -> float:
    """Return the claimed ratio."""
    value = arm.at_least or (arm.speedup and (arm.speedup.value or arm.speedup.low))
    assert value
    return value


def _best_result(comparison: Comparison, arm: ArmAnalysis) -> float:
    """Return the best result that both arms reach, or else the baseline's."""
    if arm.curve:
        return arm.curve[-1].result
    means = [x.mean for x in comparison.analysis.arms[0].qualities if x.mean is not None]
    return max(means) if comparison.study.protocol.mode == "max" else min(means)


def claimed(
    comparison: Comparison, untuned: str = "", counted: Counted | None = None
) -> tuple[Analysis, Mapping[str, str]]:
    """Return the analysis without the claims that the rule refuses, and the reasons by arm."""
    arms = comparison.analysis.arms
    reasons = {
        arm.arm: reason
        for arm in arms
        if arm.verdict is Verdict.PAYS
        and (reason := refusal(comparison, arm, untuned, counted)) is not None
    }
    kept = [
        attrs.evolve(
            arm,
            verdict=Verdict.NO_EVIDENCE,
            at_least=None,
            why=f"{REFUSED}, since {reasons[arm.arm]}; {arm.why}",
        )
        if arm.arm in reasons
        else arm
        for arm in arms
    ]
    return attrs.evolve(comparison.analysis, arms=tuple(kept)), reasons
