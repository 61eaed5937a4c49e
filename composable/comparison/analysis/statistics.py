"""Intervals and tests on runs that are paired by seed.

With 3 to 5 seeds the percentile interval of the bootstrap is far too narrow, because it takes the
spread of the sample for that of the population. The intervals here are t intervals: for a mean of
n paired differences the bootstrap's standard error, times sqrt(n / (n - 1)), is the standard
error of the t interval, so nothing needs to be resampled. The percentile interval of the paired
bootstrap is given beside it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, hypot, log, sqrt
from typing import Any, NamedTuple

import attrs

from composable.comparison.analysis.findings import Estimate, Power

__all__ = [
    "Spread",
    "cost_ratio",
    "holm",
    "import_scipy",
    "lower_bound",
    "mean_interval",
    "moments",
    "p_value",
    "paired_estimate",
    "percentiles",
    "power_of",
    "without_spread",
]

_SEED = 20_260_101
_LARGEST_SHIFT = 37.0
"""Beyond it, SciPy's noncentral t distribution is not accurate, and the power is 1."""
"""The seed of the resampling, so that an analysis is repeatable."""


class _Moments(NamedTuple):
    mean: Any
    error: Any


def paired_estimate(
    differences: Sequence[float], extra_error: float = 0.0, resamples: int = 0
) -> Estimate:
    """Estimate the mean of paired differences, with its t interval and t test.

    Args:
        differences: One per pair.
        extra_error: A standard error that all pairs share, such as that of a calibrated cost.
        resamples: The resamples of the bootstrap's percentile interval; 0: none.

    Returns:
        The estimate. Without two pairs, or where all pairs differ by the same number, the
        interval and the p value are None, since there is no spread.

    Example:
        >>> from composable.comparison.analysis.statistics import paired_estimate
        >>> found = paired_estimate([1.0, 2.0, 3.0])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), round(found.p, 3)
        (2.0, -0.484, 4.484, 0.074)
    """
    stats, np = import_scipy()
    values = np.asarray(differences, dtype=float)
    if len(values) == 0:
        return Estimate(None, None, None, None, 0)
    mean, error = (float(one) for one in moments(values, extra_error))
    p = None if without_spread(values) else p_value(mean, error, len(values))
    if p is None:
        return Estimate(mean, None, None, None, len(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    resampled = percentiles(np.mean, values, resamples) if resamples else None
    return Estimate(mean, mean - reach, mean + reach, p, len(values), resampled)


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the two-sided 95 % t interval of the mean; None, None for a single value."""
    found = paired_estimate(values)
    return found.low, found.high


def lower_bound(values: Sequence[float]) -> float | None:
    """Return the one-sided 95 % t bound below the mean; None for a single value."""
    stats, np = import_scipy()
    if len(values) < 2:
        return None
    mean, error = moments(np.asarray(values, dtype=float), 0.0)
    return float(mean - stats.t.ppf(0.95, len(values) - 1) * error)


def cost_ratio(
    baseline: Sequence[Sequence[float]], arm: Sequence[Sequence[float]], value: float
) -> tuple[Estimate, float]:
    """Return the ratio of two calibrated step costs, and the standard error of its logarithm.

    With one round, or if a round took no measurable time, the error is unknown: there is no
    interval, and 0 is returned for it.

    Args:
        baseline: For each point of the run, the seconds of a step in each interleaved round.
        arm: The same for the arm: the rounds are paired.
        value: The ratio of the costs.
    """
    stats, np = import_scipy()
    points = min(len(baseline), len(arm))
    rounds = min(len(one) for one in (*baseline[:points], *arm[:points]))
    pair = [np.asarray([one[:rounds] for one in each[:points]]) for each in (baseline, arm)]
    if rounds < 2 or min(one.min() for one in pair) <= 0:  # a clock may be coarser than a block
        return Estimate(value, None, None, None, rounds), 0.0

    def log_ratio(chosen: Any, axis: int = -1) -> Any:
        quartiles = [np.percentile(one[:, chosen], 25, axis=-1) for one in pair]
        return (np.log(quartiles[1]) - np.log(quartiles[0])).mean(axis=0)

    found = _bootstrap(log_ratio, np.arange(rounds), 500)
    error = float(found.standard_error) * sqrt(rounds / (rounds - 1))
    p = p_value(log(value), error, rounds)
    reach = float(stats.t.ppf(0.975, rounds - 1)) * error
    return Estimate(value, value * exp(-reach), value * exp(reach), p, rounds), error


@attrs.frozen
class Spread:
    """How uncertain a log ratio is.

    Args:
        pair: The standard deviation of that of one pair of runs.
        shared: A standard error that all pairs share, such as that of a calibrated cost.
    """

    pair: float
    shared: float = 0.0

    def error(self, seeds: int) -> float:
        """Return the standard error of the mean over some pairs."""
        return hypot(self.pair / sqrt(seeds), self.shared)


def power_of(spread: Spread, seeds: int, ratio: float | None) -> Power:
    """Return the power of a paired t test of log ratios, by the noncentral t distribution.

    Args:
        spread: The uncertainty of the log ratio; not 0.
        seeds: The number of pairs, at least 2.
        ratio: The observed ratio.

    Example:
        >>> from composable.comparison.analysis.statistics import Spread, power_of
        >>> found = power_of(Spread(0.1), 5, 1.2)
        >>> round(found.detectable, 3), found.seeds_for_observed, found.seeds_for_tenth
        (1.183, 5, 11)
    """
    from scipy.optimize import brentq

    def lacking(shift: float) -> float:
        return float(_power(shift, seeds)) - 0.8

    detectable = brentq(lacking, 0.0, _LARGEST_SHIFT) * spread.error(seeds)
    observed = None if ratio is None else _seeds_needed(abs(log(ratio)), spread)
    return Power(exp(min(detectable, 500.0)), observed, _seeds_needed(log(1.1), spread))


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


def moments(values: Any, extra_error: Any) -> _Moments:
    """Return the means over the last axis, and their standard errors."""
    count = values.shape[-1]
    variance = values.var(axis=-1, ddof=1) / count if count > 1 else 0.0 * values.mean(axis=-1)
    return _Moments(values.mean(axis=-1), (variance + extra_error**2) ** 0.5)


def without_spread(values: Any) -> bool:
    """Return whether all values are the same number, but not 0, as if seeds had no effect."""
    mean = abs(float(values.mean()))
    return mean > 0 and float(values.std()) <= 1e-9 * mean


def p_value(mean: float, error: float, count: int) -> float | None:
    """Return the two-sided p value of a t test; None without a spread."""
    stats, _ = import_scipy()
    if count < 2:
        return None
    if error <= 1e-12 * abs(mean):
        return 1.0 if mean == 0 else None
    return float(2 * stats.t.sf(abs(mean) / error, count - 1))


def _bootstrap(statistic: Any, values: Any, resamples: int) -> Any:
    stats, np = import_scipy()
    return stats.bootstrap(
        (values,),
        statistic,
        n_resamples=resamples,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(_SEED),
    )


def percentiles(statistic: Any, values: Any, resamples: int) -> tuple[float, float] | None:
    """Return the bootstrap's 95 % percentile interval of a statistic that is vectorized."""
    if len(values) < 2:
        return None
    low, high = _bootstrap(statistic, values, resamples).confidence_interval
    return float(low), float(high)


def _power(shift: float, seeds: int) -> Any:
    """Return the power of the paired t test for an effect in standard errors of the mean."""
    stats, np = import_scipy()
    quantile = stats.t.ppf(0.975, seeds - 1)
    shift = min(shift, _LARGEST_SHIFT)
    upper = np.nan_to_num(stats.nct.sf(quantile, seeds - 1, shift), nan=1.0)
    lower = np.nan_to_num(stats.nct.cdf(-quantile, seeds - 1, shift), nan=0.0)
    return upper + lower  # SciPy gives NaN for some large shifts, where it is 1 + 0


def _seeds_needed(effect: float, spread: Spread) -> int | None:
    seeds = range(2, 1001)
    lacking = bisect_left(
        seeds, 0.8, key=lambda count: float(_power(effect / spread.error(count), count))
    )
    return seeds[lacking] if lacking < len(seeds) else None
