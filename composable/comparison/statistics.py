"""Intervals and tests on runs that are paired by seed.

With 3 to 5 seeds the percentile interval of the bootstrap is far too narrow, because it takes the
spread of the sample for that of the population. The intervals here are t intervals: for a mean of
n paired differences the bootstrap's standard error, times sqrt(n / (n - 1)), is the standard
error of the t interval, so nothing needs to be resampled. The interval of a ratio of times
inverts a paired t test (Fieller, 1954): a ratio is within it if the arm's results at the time
that it implies do not differ from the baseline's. Such an interval exists also where a curve ends
before it reaches the target; its bound is then open. The percentile interval of the paired
bootstrap is given beside it.

Results are oriented: a higher one is better.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Any, NamedTuple

import attrs

from composable.comparison.findings import Estimate, Power

__all__ = [
    "Curve",
    "TimeComparison",
    "compare_times",
    "cost_ratio",
    "crossing_time",
    "holm",
    "lower_bound",
    "mean_interval",
    "paired_estimate",
    "power_of",
]

SEED = 20_260_101
"""Of the resampling, so that an analysis is repeatable."""
SAME_TIME = log(1.01)
"""Times that differ by less are taken as equal: calibrated costs are not more precise."""


@attrs.frozen
class Curve:
    """Final results by schedule."""

    log_times: tuple[float, ...]
    """Ascending."""
    results: tuple[tuple[float, ...], ...]
    """For each schedule, one result per seed."""


@attrs.frozen
class TimeComparison:
    """The times at which the baseline and an arm reach the target."""

    ratio: Estimate
    gain: float
    """The mean difference of the results at the baseline's time: above 0, the arm is better."""
    spread: float | None
    """The standard deviation of the log ratio of one pair of runs."""


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
        interval and the p value are None: there is no spread to judge by.

    Example:
        >>> from composable.comparison.statistics import paired_estimate
        >>> found = paired_estimate([1.0, 2.0, 3.0])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), round(found.p, 3)
        (2.0, -0.484, 4.484, 0.074)
    """
    stats, np = _scipy()
    values = np.asarray(differences, dtype=float)
    if len(values) == 0:
        return Estimate(None, None, None, None, 0)
    mean, error = (float(one) for one in _moments(values, extra_error))
    p = _p_value(mean, error, len(values))
    if p is None:
        return Estimate(mean, None, None, None, len(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    resampled = _percentiles(values.mean, values, resamples) if resamples else None
    return Estimate(mean, mean - reach, mean + reach, p, len(values), resampled)


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the two-sided 95 % t interval of the mean; None, None for a single value."""
    found = paired_estimate(values)
    return found.low, found.high


def lower_bound(values: Sequence[float]) -> float | None:
    """Return the one-sided 95 % t bound below the mean; None for a single value."""
    stats, np = _scipy()
    if len(values) < 2:
        return None
    mean, error = _moments(np.asarray(values, dtype=float), 0.0)
    return float(mean - stats.t.ppf(0.95, len(values) - 1) * error)


def crossing_time(curve: Curve, level: float) -> float | None:
    """Return the log time at which the mean, linear between schedules, first is `level`.

    Returns:
        The log time; None where the mean stays below, and minus infinity where the first
        schedule's mean is above already.
    """
    _, np = _scipy()
    found = float(_crossings(curve, np.mean(curve.results, axis=1), level))
    return None if found == float("inf") else found


def compare_times(
    baseline: Curve,
    arm: Curve,
    target: float | None,
    cost_error: float = 0.0,
    resamples: int = 0,
) -> TimeComparison | None:
    """Compare the times at which the mean final results of two arms reach a target.

    The p value is that of the paired t test of the results at the baseline's time to target:
    there the arm's mean is the baseline's if and only if the ratio is 1. Where the arm has no
    schedule of that time, its nearest one is tested, and only the direction that it can show
    counts: a shorter schedule can be better, and a longer one worse.

    Args:
        baseline: Its results, with seeds in the order of the arm's.
        arm: The results of the arm.
        target: The level to reach; None: the baseline's results on its longest schedule.
        cost_error: The standard error of the log ratio of the times.
        resamples: As for `paired_estimate`.

    Returns:
        The comparison; None where the baseline's schedules don't enclose its time to target.
    """
    _, np = _scipy()
    log_b = baseline.log_times[-1] if target is None else crossing_time(baseline, target)
    if log_b is None or log_b == float("-inf"):
        return None
    reference = _at(baseline, [log_b])[0]
    level = float(reference.mean())
    log_a = crossing_time(arm, level)
    value = None if log_a is None or log_a == float("-inf") else exp(log_b - log_a)
    gain, error, p = _test_at(arm, log_b, reference, cost_error)
    low, high = _invert(arm, log_b, log_a, reference, cost_error) if p is not None else (None, None)
    if p is not None and p < 0.05 and gain < 0:
        high = 1.0 if high is None else min(high, 1.0)
    resampled = None
    if value is not None and resamples and p is not None:
        indices = np.arange(len(reference))

        def log_ratio(chosen: Any, axis: int = -1) -> Any:
            return _resampled_ratio(baseline, arm, target, chosen)

        bounds = _percentiles(log_ratio, indices, resamples)
        resampled = None if bounds is None else (exp(bounds[0]), exp(bounds[1]))
    estimate = Estimate(value, low, high, p, len(reference), resampled)
    return TimeComparison(estimate, gain, _spread(arm, log_b, log_a, reference))


def cost_ratio(
    baseline: Sequence[Sequence[float]], arm: Sequence[Sequence[float]], value: float
) -> tuple[Estimate, float]:
    """Return the ratio of two calibrated step costs, and the standard error of its logarithm.

    Args:
        baseline: For each point of the run, the seconds of a step in each interleaved round.
        arm: The same for the arm: the rounds are paired.
        value: The ratio of the costs.
    """
    stats, np = _scipy()
    points = min(len(baseline), len(arm))
    rounds = min(len(one) for one in (*baseline[:points], *arm[:points]))
    pair = [np.asarray([one[:rounds] for one in each[:points]]) for each in (baseline, arm)]
    if rounds < 2:
        return Estimate(value, None, None, None, rounds), 0.0

    def log_ratio(chosen: Any, axis: int = -1) -> Any:
        quartiles = [np.percentile(one[:, chosen], 25, axis=-1) for one in pair]
        return (np.log(quartiles[1]) - np.log(quartiles[0])).mean(axis=0)

    found = _bootstrap(log_ratio, np.arange(rounds), 500)
    error = float(found.standard_error) * sqrt(rounds / (rounds - 1))
    p = _p_value(log(value), error, rounds)
    reach = float(stats.t.ppf(0.975, rounds - 1)) * error
    return Estimate(value, value * exp(-reach), value * exp(reach), p, rounds), error


def power_of(spread: float, seeds: int, ratio: float | None) -> Power:
    """Return what a paired t test of log ratios can find, by the noncentral t distribution.

    Args:
        spread: The standard deviation of the log ratio of one pair.
        seeds: The number of pairs, at least 2.
        ratio: The observed ratio.

    Example:
        >>> from composable.comparison.statistics import power_of
        >>> found = power_of(0.1, 5, 1.2)
        >>> round(found.detectable, 3), found.seeds_for_observed, found.seeds_for_tenth
        (1.183, 5, 11)
    """
    from scipy.optimize import brentq

    def lacking(effect: float) -> float:
        return float(_power(effect, seeds)) - 0.8

    detectable = brentq(lacking, 0.0, 100.0)
    observed = None if ratio is None else _seeds_needed(abs(log(ratio)), spread)
    return Power(exp(min(detectable * spread, 500.0)), observed, _seeds_needed(log(1.1), spread))


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Correct p values for their number (Holm, 1979), so that the familywise error rate holds.

    Args:
        p_values: One per arm; None counts as an arm without evidence.

    Example:
        >>> from composable.comparison.statistics import holm
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


def _scipy() -> tuple[Any, Any]:
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


def _moments(values: Any, extra_error: Any) -> _Moments:
    """Return the mean over the last axis, and its standard error."""
    count = values.shape[-1]
    variance = values.var(axis=-1, ddof=1) / count if count > 1 else 0.0 * values.mean(axis=-1)
    return _Moments(values.mean(axis=-1), (variance + extra_error**2) ** 0.5)


def _p_value(mean: float, error: float, count: int) -> float | None:
    stats, _ = _scipy()
    if count < 2:
        return None
    if error <= 1e-12 * abs(mean):
        return 1.0 if mean == 0 else None
    return float(2 * stats.t.sf(abs(mean) / error, count - 1))


def _at(curve: Curve, log_times: Any) -> Any:
    """Return the results of each seed at some times, linear in log time between schedules."""
    _, np = _scipy()
    seeds = np.asarray(curve.results).T
    return np.stack([np.interp(log_times, curve.log_times, one) for one in seeds], axis=1)


def _slopes(curve: Curve, log_times: Any) -> Any:
    """Return the slopes of the mean at some times."""
    _, np = _scipy()
    if len(curve.log_times) == 1:
        return np.zeros(len(log_times))
    slopes = np.diff(np.mean(curve.results, axis=1)) / np.diff(curve.log_times)
    place = np.searchsorted(curve.log_times, log_times, side="left") - 1
    return slopes[np.clip(place, 0, len(slopes) - 1)]


def _crossings(curve: Curve, means: Any, level: Any) -> Any:
    """Return where means (schedules first) reach a level: -inf before the first, inf never."""
    _, np = _scipy()
    times = curve.log_times
    found = np.full(np.shape(means)[1:], np.inf)
    for i in reversed(range(len(times) - 1)):
        hit = (means[i] < level) & (means[i + 1] >= level)
        rise = np.where(hit, means[i + 1] - means[i], 1.0)
        part = (level - means[i]) / rise
        found = np.where(hit, times[i] + part * (times[i + 1] - times[i]), found)
    return np.where(means[0] >= level, -np.inf, found)


def _test_at(
    arm: Curve, log_b: float, reference: Any, cost_error: float
) -> tuple[float, float, float | None]:
    """Test the arm's results at the baseline's time, or on the nearest schedule."""
    time = min(max(log_b, arm.log_times[0]), arm.log_times[-1])
    extra = abs(float(_slopes(arm, [time])[0])) * cost_error
    mean, error = (float(one) for one in _moments(_at(arm, [time])[0] - reference, extra))
    p = _p_value(mean, error, len(reference))
    same = max(SAME_TIME, 2 * cost_error)
    says_nothing = (time < log_b - same and mean < 0) or (time > log_b + same and mean > 0)
    return mean, error, 1.0 if says_nothing and p is not None else p


def _invert(
    arm: Curve, log_b: float, log_a: float | None, reference: Any, cost_error: float
) -> tuple[float | None, float | None]:
    """Return the ratios at which the arm becomes better, and stops being worse."""
    stats, np = _scipy()
    grid = np.concatenate([np.linspace(arm.log_times[0], arm.log_times[-1], 257), arm.log_times])
    if log_a is not None and log_a != float("-inf"):
        grid = np.append(grid, log_a)
    grid = np.unique(grid)
    extra = np.abs(_slopes(arm, grid)) * cost_error
    mean, error = _moments(_at(arm, grid) - reference, extra)
    reach = stats.t.ppf(0.975, len(reference) - 1) * error
    better, not_worse = mean - reach > 0, mean + reach >= 0
    low = exp(log_b - grid[better.argmax()]) if better.any() else None
    if not not_worse.any():
        return None, exp(log_b - grid[-1])
    first = int(not_worse.argmax())
    return low, (exp(log_b - grid[first]) if first else None)


def _spread(arm: Curve, log_b: float, log_a: float | None, reference: Any) -> float | None:
    """Return the standard deviation of the log ratio of one pair, by the slope of the mean."""
    time = log_b if log_a is None or log_a == float("-inf") else log_a
    time = min(max(time, arm.log_times[0]), arm.log_times[-1])
    slope = abs(float(_slopes(arm, [time])[0]))
    if slope == 0 or len(reference) < 2:
        return None
    return float((_at(arm, [time])[0] - reference).std(ddof=1)) / slope or None


def _resampled_ratio(baseline: Curve, arm: Curve, target: float | None, chosen: Any) -> Any:
    """Return the log ratios of resampled seeds; times beyond the schedules count as their ends."""
    _, np = _scipy()
    base_means, arm_means = (
        np.asarray(curve.results)[:, chosen].mean(axis=-1) for curve in (baseline, arm)
    )
    level = base_means[-1] if target is None else target
    arm_times = np.clip(_crossings(arm, arm_means, level), arm.log_times[0], arm.log_times[-1])
    if target is None:
        return baseline.log_times[-1] - arm_times
    times = _crossings(baseline, base_means, level)
    return np.clip(times, baseline.log_times[0], baseline.log_times[-1]) - arm_times


def _bootstrap(statistic: Any, values: Any, resamples: int) -> Any:
    stats, np = _scipy()
    return stats.bootstrap(
        (values,),
        statistic,
        n_resamples=resamples,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(SEED),
    )


def _percentiles(statistic: Any, values: Any, resamples: int) -> tuple[float, float] | None:
    _, np = _scipy()
    if len(values) < 2:
        return None
    if getattr(statistic, "__name__", "") == "mean":
        statistic = np.mean
    low, high = _bootstrap(statistic, values, resamples).confidence_interval
    return float(low), float(high)


def _power(effect: Any, seeds: Any) -> Any:
    """Return the power of the paired t test for an effect in standard deviations."""
    stats, np = _scipy()
    quantile = stats.t.ppf(0.975, seeds - 1)
    shift = np.minimum(effect * np.sqrt(seeds), 37.0)
    upper = np.nan_to_num(stats.nct.sf(quantile, seeds - 1, shift), nan=1.0)
    lower = np.nan_to_num(stats.nct.cdf(-quantile, seeds - 1, shift), nan=0.0)
    return upper + lower  # SciPy gives NaN for some large shifts, where it is 1 + 0


def _seeds_needed(effect: float, spread: float) -> int | None:
    _, np = _scipy()
    seeds = np.arange(2, 1001)
    enough = _power(effect / spread, seeds) >= 0.8
    return int(seeds[enough.argmax()]) if enough.any() else None
