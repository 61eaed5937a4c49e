"""The performance profile of the arms that stand in two of the stored studies."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import exp, inf, log
from statistics import fmean

import numpy as np

from composable.comparison import Comparison
from composable.comparison.statistics import CostCurve

__all__ = ["cost_to", "performance_profile", "profile_lines"]

FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0)
TARGETS = 5


def performance_profile(
    costs: Mapping[str, Sequence[float]], factors: Sequence[float] = FACTORS
) -> dict[str, list[float]]:
    """Return the share of problems on which each arm is within a factor of the best.

    The method is of Dolan and Moré (2002), https://doi.org/10.1007/s101070100263.

    Args:
        costs: By arm, the cost of each problem; infinite if its target is missed.
        factors: Of the least cost of any arm, at least 1.

    Example:
        >>> performance_profile({"a": [1.0, 4.0], "b": [2.0, float("inf")]}, [1, 2])
        {'a': [1.0, 1.0], 'b': [0.0, 0.5]}
    """
    best = [min(each) for each in zip(*costs.values(), strict=True)]
    return {
        arm: [
            fmean(one < inf and one <= factor * least for one, least in zip(own, best, strict=True))
            for factor in factors
        ]
        for arm, own in costs.items()
    }


def cost_to(comparison: Comparison, arm: str, targets: Sequence[float]) -> list[float]:
    """Return the cost at which an arm reaches each target, at least that of its first schedule."""
    curve = _curve(comparison, arm)
    sign = _sign(comparison)
    return [
        inf if sign * target > curve.ends[1] else exp(float(curve.cost(sign * target)))
        for target in targets
    ]


def _sign(comparison: Comparison) -> int:
    return 1 if comparison.study.protocol.mode == "max" else -1


def _curve(comparison: Comparison, arm: str) -> CostCurve:
    sign = _sign(comparison)
    points = [
        (log(one.seconds), sign * one.mean)
        for one in comparison.analysis[arm].qualities
        if one.mean is not None
    ]
    costs, means = zip(*sorted(points), strict=True)
    return CostCurve(np.asarray(costs), np.asarray(means)[:, None])


def profile_lines(studies: Mapping[str, Comparison]) -> list[str]:
    """Render the profile of every two studies with arms of the same names, and the baseline."""
    head = " | ".join(f"within {factor:g}x" for factor in FACTORS)
    lines = [f"| studies | arm | {head} | missed |", "| --- " * (len(FACTORS) + 3) + "|"]
    for pair in combinations(studies, 2):
        both = [studies[name] for name in pair]
        shared = [
            arm.arm
            for arm in both[0].analysis.arms
            if arm.role == "arm" and arm.arm in both[1].study.protocol.arms
        ]
        if shared:
            lines += _rows(", ".join(pair), both, shared)
    return lines


def _rows(title: str, both: Sequence[Comparison], shared: Sequence[str]) -> list[str]:
    costs: dict[str, list[float]] = {}
    for comparison in both:
        baseline = comparison.study.protocol.baseline
        sign = _sign(comparison)
        targets = [sign * one for one in np.linspace(*_curve(comparison, baseline).ends, TARGETS)]
        for arm in ("baseline", *shared):
            name = baseline if arm == "baseline" else arm
            costs.setdefault(arm, []).extend(cost_to(comparison, name, targets))
    return [
        f"| {title} | {arm} | {' | '.join(f'{one:.0%}' for one in shares)} | "
        f"{costs[arm].count(inf)} of {len(costs[arm])} |"
        for arm, shares in performance_profile(costs).items()
    ]
