"""Ratios of times to a target: of learning curves over schedules, paired by seed.

The interval inverts a paired t test (Fieller, 1954): a ratio is within it if the arm's results at
the time that it implies do not differ from the baseline's. Such an interval exists also where a
curve ends before it reaches the target; its bound is then open. The percentile interval of the
paired bootstrap is given beside it.

Results are oriented: a higher one is better.
"""

from math import exp, inf, log
from typing import Any

import attrs

from composable.comparison.analysis.findings import Estimate
from composable.comparison.analysis.statistics import (
    Spread,
    import_scipy,
    moments,
    p_value,
    percentiles,
    without_spread,
)

__all__ = ["Curve", "TimeComparison", "compare_times", "crossing_time"]

_SAME_TIME = log(1.01)
"""Times that differ by less count as equal: calibrated costs are not more precise."""


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
    spread: Spread | None
    """The uncertainty of the log ratio; None where it cannot be estimated."""


def crossing_time(curve: Curve, level: float) -> float | None:
    """Return the log time at which the mean, linear between schedules, first is `level`.

    Returns:
        The log time; None where the mean stays below, and minus infinity where the first
        schedule's mean is above already.
    """
    _, np = import_scipy()
    found = float(_crossings(curve, np.mean(curve.results, axis=1), level))
    return None if found == inf else found


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
    log_b = baseline.log_times[-1] if target is None else crossing_time(baseline, target)
    if log_b is None or log_b == -inf:
        return None
    reference = _at(baseline, [log_b])[0]
    bend = float(_bends(baseline, [log_b])[0])
    test = _Test(arm, reference, log_b, cost_error, bend)
    log_a = crossing_time(arm, float(reference.mean()))
    value = None if log_a is None or log_a == -inf else exp(log_b - log_a)
    gain, p = test.result()
    low, high, resampled = None, None, None
    if p is not None:
        low, high = test.interval(log_a)
        # The intervals of other times may contradict the test at the baseline's time: it decides.
        if p < 0.05 and gain < 0:
            high = min(1.0, inf if high is None else high)
        if p >= 0.05 and low is not None:
            low = min(1.0, low)
        if value is not None and resamples:
            resampled = _resample(baseline, arm, target, resamples)
    estimate = Estimate(value, low, high, p, len(reference), resampled)
    return TimeComparison(estimate, gain, test.spread(log_a))


def _at(curve: Curve, log_times: Any) -> Any:
    """Return the results of each seed at some times, linear in log time between schedules."""
    _, np = import_scipy()
    seeds = np.asarray(curve.results).T
    return np.stack([np.interp(log_times, curve.log_times, one) for one in seeds], axis=1)


def _slopes(curve: Curve, log_times: Any) -> Any:
    """Return the slopes of the mean at some times."""
    _, np = import_scipy()
    if len(curve.log_times) == 1:
        return np.zeros(len(log_times))
    slopes = np.diff(np.mean(curve.results, axis=1)) / np.diff(curve.log_times)
    place = np.searchsorted(curve.log_times, log_times, side="left") - 1
    return slopes[np.clip(place, 0, len(slopes) - 1)]


def _bends(curve: Curve, log_times: Any) -> Any:
    """Return how far a monotone cubic through the means is above the line between them."""
    _, np = import_scipy()
    if len(curve.log_times) < 3:
        return np.zeros(len(log_times))
    from scipy.interpolate import PchipInterpolator

    means = np.mean(curve.results, axis=1)
    line = np.interp(log_times, curve.log_times, means)
    return PchipInterpolator(curve.log_times, means)(log_times) - line


def _crossings(curve: Curve, means: Any, level: Any) -> Any:
    """Return where means (schedules first) reach a level: -inf before the first, inf never."""
    _, np = import_scipy()
    times = curve.log_times
    found = np.full(np.shape(means)[1:], np.inf)
    for i in reversed(range(len(times) - 1)):
        hit = (means[i] < level) & (means[i + 1] >= level)
        rise = np.where(hit, means[i + 1] - means[i], 1.0)
        part = (level - means[i]) / rise
        found = np.where(hit, times[i] + part * (times[i + 1] - times[i]), found)
    return np.where(means[0] >= level, -np.inf, found)


@attrs.frozen
class _Test:
    """The paired t test of an arm's results against the baseline's at its time to target."""

    arm: Curve
    reference: Any
    """The baseline's results at its time to target, by seed."""
    log_b: float
    """The log of this time."""
    cost_error: float
    bend: float
    """The bend of the baseline at this time."""

    def result(self) -> tuple[float, float | None]:
        """Return the mean difference at the baseline's time, or the nearest schedule, and its p."""
        time = self._within(self.log_b)
        differences = self._differences([time])[0]
        mean, error = (float(one) for one in moments(differences, self._shared_errors([time])[0]))
        p = None if without_spread(differences) else p_value(mean, error, len(self.reference))
        same = max(_SAME_TIME, 2 * self.cost_error)
        shorter_and_worse = time < self.log_b - same and mean < 0
        longer_and_better = time > self.log_b + same and mean > 0
        inconclusive = shorter_and_worse or longer_and_better
        return mean, 1.0 if inconclusive and p is not None else p

    def interval(self, log_a: float | None) -> tuple[float | None, float | None]:
        """Return the ratios at which the arm becomes better, and stops being worse.

        Args:
            log_a: The arm's log time to the baseline's mean, if it has one.
        """
        stats, np = import_scipy()
        first, last = self.arm.log_times[0], self.arm.log_times[-1]
        known = [self._within(self.log_b), *([] if log_a in (None, -inf) else [log_a])]
        grid = np.unique([*np.linspace(first, last, 257), *self.arm.log_times, *known])
        mean, error = moments(self._differences(grid), self._shared_errors(grid))
        reach = stats.t.ppf(0.975, len(self.reference) - 1) * error
        better, not_worse = mean - reach > 0, mean + reach >= 0
        low = exp(self.log_b - grid[better.argmax()]) if better.any() else None
        if not not_worse.any():
            return None, exp(self.log_b - last)
        at = int(not_worse.argmax())
        return low, (exp(self.log_b - grid[at]) if at else None)

    def spread(self, log_a: float | None) -> Spread | None:
        """Return the uncertainty of the log ratio, by the slope of the mean."""
        time = self._within(self.log_b if log_a is None or log_a == -inf else log_a)
        slope = abs(float(_slopes(self.arm, [time])[0]))
        if slope == 0 or len(self.reference) < 2:
            return None
        pair = float(self._differences([time])[0].std(ddof=1)) / slope
        shared = float(self._shared_errors([time])[0]) / slope
        return Spread(pair, shared) if pair else None

    def _within(self, log_time: float) -> float:
        """Return the nearest time within the arm's schedules."""
        return min(max(log_time, self.arm.log_times[0]), self.arm.log_times[-1])

    def _differences(self, log_times: Any) -> Any:
        return _at(self.arm, log_times) - self.reference

    def _shared_errors(self, log_times: Any) -> Any:
        """Return the standard errors that all seeds share: of the costs, and of the interpolation.

        That of the interpolation is the difference that a cubic would make. It vanishes on
        schedules, and where the two curves bend alike.
        """
        _, np = import_scipy()
        costs = _slopes(self.arm, log_times) * self.cost_error
        return np.hypot(costs, _bends(self.arm, log_times) - self.bend)


def _resample(
    baseline: Curve, arm: Curve, target: float | None, resamples: int
) -> tuple[float, float] | None:
    """Return the percentile interval of the ratio over resampled pairs."""
    _, np = import_scipy()

    def log_ratio(chosen: Any, axis: int = -1) -> Any:
        return _resampled_ratio(baseline, arm, target, chosen)

    bounds = percentiles(log_ratio, np.arange(len(arm.results[0])), resamples)
    return None if bounds is None else (exp(bounds[0]), exp(bounds[1]))


def _resampled_ratio(baseline: Curve, arm: Curve, target: float | None, chosen: Any) -> Any:
    """Return the log ratios of resampled seeds; times beyond the schedules count as their ends."""
    _, np = import_scipy()
    base_means, arm_means = (
        np.asarray(curve.results)[:, chosen].mean(axis=-1) for curve in (baseline, arm)
    )
    level = base_means[-1] if target is None else target
    arm_times = np.clip(_crossings(arm, arm_means, level), arm.log_times[0], arm.log_times[-1])
    if target is None:
        return baseline.log_times[-1] - arm_times
    times = _crossings(baseline, base_means, level)
    return np.clip(times, baseline.log_times[0], baseline.log_times[-1]) - arm_times
