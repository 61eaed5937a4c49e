"""Intervals, tests and power for estimates whose errors have several sources."""

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, hypot, log, sqrt
from typing import Any, NamedTuple

from composable.comparison.analysis.findings import Estimate, Power

__all__ = [
    "Interval",
    "Part",
    "cost_ratio",
    "holm",
    "import_scipy",
    "intervals_of",
    "mean_interval",
    "power_of",
]

_SEED = 20_260_101
"""The seed of the resampling, so that an analysis is repeatable."""
_RESAMPLES = 500
_POWER = 0.8
_LARGEST_SHIFT = 37.0
"""Beyond it, SciPy's noncentral t distribution is not accurate, and the power is 1."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float
    p: float | None
    """Of no effect, two-sided; None without a spread."""


class Part(NamedTuple):
    """A part of the variance of an estimate."""

    variance: Any
    degrees: float
    """Of freedom."""


def intervals_of(estimates: Any, parts: Sequence[Part]) -> list[Interval]:
    """Return the t intervals of estimates; each covers those of all its alternatives.

    Args:
        estimates: Values by alternative and estimate; the first alternative is the value.
        parts: Independent parts of their variances, whose degrees of freedom are combined
            (Welch and Satterthwaite).

    Example:
        >>> import numpy as np
        >>> from composable.comparison.analysis.statistics import Part, intervals_of
        >>> (found,) = intervals_of(np.array([[2.0]]), [Part(np.array([[1 / 3]]), 2)])
        >>> round(found.low, 3), round(found.high, 3), round(found.p, 3)
        (-0.484, 4.484, 0.074)
    """
    stats, np = import_scipy()
    variance = sum(part.variance + np.zeros_like(estimates) for part in parts)
    weights = sum(part.variance**2 / part.degrees for part in parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        degrees = np.where(variance > 0, variance**2 / weights, 1.0)
        error = np.sqrt(variance)
        p = 2 * stats.t.sf(np.abs(estimates) / error, degrees)
    reach = stats.t.ppf(0.975, degrees) * error
    low, high = (estimates - reach).min(axis=0), (estimates + reach).max(axis=0)
    agree = (np.sign(estimates) == np.sign(estimates[0])).all(axis=0)
    p = np.where(agree, p.max(axis=0), 1.0)
    rows = zip(*(row.tolist() for row in (estimates[0], low, high, p, error[0])), strict=True)
    return [Interval(value, low, high, _p(value, p, error)) for value, low, high, p, error in rows]


def _p(value: float, p: float, error: float) -> float | None:
    """Return the p value; None for an effect without an error, as if seeds had no effect."""
    if error > 1e-9 * abs(value):
        return p
    return 1.0 if value == 0 else None


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % t interval of a mean; None, None for a single value."""
    _, np = import_scipy()
    if len(values) < 2:
        return None, None
    variance = np.full((1, 1), np.var(values, ddof=1) / len(values))
    (found,) = intervals_of(np.full((1, 1), np.mean(values)), [Part(variance, len(values) - 1)])
    return found.low, found.high


def cost_ratio(
    baseline: Sequence[Sequence[float]], arm: Sequence[Sequence[float]], value: float
) -> tuple[Estimate, Part]:
    """Return the ratio of two measured step costs, and the error of its logarithm.

    With one round, or if a round took no measurable time, the error is unknown: there is no
    interval.

    Args:
        baseline: For each point of the run, the seconds of a step in each interleaved round.
        arm: The same for the arm: the rounds are paired.
        value: The ratio of the costs.
    """
    _, np = import_scipy()
    points = min(len(baseline), len(arm))
    rounds = min(len(one) for one in (*baseline[:points], *arm[:points]))
    pair = [np.asarray([one[:rounds] for one in each[:points]]) for each in (baseline, arm)]
    if rounds < 2 or min(one.min() for one in pair) <= 0:  # a clock may be coarser than a block
        return Estimate(value, None, None, None, rounds), Part(0.0, 1)
    chosen = np.random.default_rng(_SEED).integers(rounds, size=(_RESAMPLES, rounds))
    quartiles = [np.log(np.percentile(one[:, chosen], 25, axis=-1)).mean(axis=0) for one in pair]
    part = Part(float(np.var(quartiles[1] - quartiles[0])) * rounds / (rounds - 1), rounds - 1)
    (found,) = intervals_of(np.full((1, 1), log(value)), [part])
    return Estimate(value, exp(found.low), exp(found.high), found.p, rounds), part


def power_of(pair: float, shared: float, seeds: int, effect: float) -> Power:
    """Return the power of a paired t test, by the noncentral t distribution.

    Args:
        pair: The standard deviation of the effect of one pair of seeds.
        shared: A standard error that all pairs share, such as that of a cost; one of both is
            above 0.
        seeds: The number of pairs, at least 2.
        effect: The observed log ratio.

    Example:
        >>> from composable.comparison.analysis.statistics import power_of
        >>> found = power_of(0.1, 0.0, 5, 0.1823)
        >>> round(found.detectable, 3), found.seeds_for_observed
        (1.183, 5)
    """
    from scipy.optimize import brentq

    def error(count: int) -> float:
        return hypot(pair / sqrt(count), shared)

    counts = range(2, 1001)
    lacking = bisect_left(
        counts, _POWER, key=lambda count: _power(abs(effect) / error(count), count)
    )
    shift = brentq(lambda one: _power(one, seeds) - _POWER, 0.0, _LARGEST_SHIFT)
    smallest = exp(min(shift * error(seeds), 500.0))
    return Power(smallest, counts[lacking] if lacking < len(counts) else None)


def _power(shift: float, seeds: int) -> float:
    """Return the power of the paired t test for an effect in standard errors of the mean."""
    stats, np = import_scipy()
    quantile = stats.t.ppf(0.975, seeds - 1)
    shift = min(shift, _LARGEST_SHIFT)
    upper = np.nan_to_num(stats.nct.sf(quantile, seeds - 1, shift), nan=1.0)
    lower = np.nan_to_num(stats.nct.cdf(-quantile, seeds - 1, shift), nan=0.0)
    return float(upper + lower)  # SciPy gives NaN for some large shifts, where it is 1 + 0


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Correct p values for their number (Holm, 1979), so that the familywise error rate holds.

    Args:
        p_values: One per arm; None counts as an arm without evidence.

    Example:
        >>> from composable.comparison.analysis.statistics import holm
        >>> holm([0.01, None, 0.02])
        (0.03, None, 0.04)
    """
    order = sorted(range(len(p_values)), key=lambda i: _or_one(p_values[i]))
    corrected: dict[int, float] = {}
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * _or_one(p_values[index])))
        corrected[index] = largest
    return tuple(None if p is None else corrected[index] for index, p in enumerate(p_values))


def _or_one(p: float | None) -> float:
    return 1.0 if p is None else p


def import_scipy() -> tuple[Any, Any]:
    """Import SciPy's statistics, and NumPy, on their first use."""
    try:
        import numpy
        import scipy.stats
    except ImportError as error:
        raise ImportError(
            "The analysis of a comparison needs SciPy: pip install composable[compare]. It is an "
            "extra, which the library does not install by default."
        ) from error
    return scipy.stats, numpy
