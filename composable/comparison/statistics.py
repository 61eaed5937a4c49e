"""The horizontal distance between two curves of result over cost, and what it is worth.

The mean final results over the seeds at each schedule, made monotone, are interpolated over the
logarithm of cost (PCHIP: monotone cubics). The distance at a result is the logarithm of the
baseline's cost of reaching it, divided by the arm's. Its mean over the results that both curves
reach summarizes it.

Intervals come from the jackknife over the seeds, with the error of the measured costs added. How a
curve bends between its schedules is not known, so an interval covers the intervals of two other
interpolations: one that bends more, over 1 / sqrt(cost), and straight lines.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import exp, log, sqrt
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import attrs
import numpy as np
from scipy import stats
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

Array: TypeAlias = Any
DistanceKind: TypeAlias = Literal["distance", "at least", "at most"]
Shape: TypeAlias = Literal["smooth", "bent", "straight"]

CONTRAST = 4.0
"""The least contrast of a curve: with less, intervals are too narrow."""
_POINTS = 33
"""The results, evenly spaced, at which the distance is measured."""
_PROCESSES = 0.05
"""The standard deviation of the log ratio of step costs from a process of each arm to others, where
it is not measured: four measurements of one recipe had 0.057."""
_SEED, _RESAMPLES = 20_260_101, 500
"""Of the bootstrap of costs, so that an analysis is repeatable."""


# --- intervals ---


class LogInterval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float
    p: float | None
    """Of no effect, two-sided; None without a spread."""


class VariancePart(NamedTuple):
    """A part of the variance of an estimate."""

    variance: Any
    degrees: float
    """Of freedom."""


def intervals_of(estimates: Array, parts: Sequence[VariancePart]) -> list[LogInterval]:
    """Return the t intervals of estimates; each covers the intervals of all its alternatives.

    Args:
        estimates: Values by alternative and estimate; the first alternative is the value.
        parts: Independent parts of their variances, whose degrees of freedom are combined
            (Welch and Satterthwaite).
    """
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
    return [
        LogInterval(value, low, high, _p(value, p, error)) for value, low, high, p, error in rows
    ]


def _p(value: float, p: float, error: float) -> float | None:
    """Return the p value; None for an effect without an error, as if seeds had no effect."""
    if error > 1e-9 * abs(value):
        return p
    return 1.0 if value == 0 else None


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % t interval of a mean; None, None for a single value."""
    if len(values) < 2:
        return None, None
    found = _interval([np.asarray(values)])
    return found.low, found.high


def cost_error(logs: Array, baseline: int, arm: int) -> VariancePart:
    """Return the error of the log ratio of two step costs, from processes of all arms.

    A measurement is the sum of what is due to the arm, to the repetition, such as the speed of the
    machine, and to the process. The variance of the latter is pooled over all arms, unless it is
    larger in these two. A test such as Bartlett's, which decides whether to pool, misses one arm of
    nine whose processes differ by 8 % instead of 2 %: 16 % of the intervals were then wrong.

    Args:
        logs: The log costs by arm and repetition, at least two of each.
        baseline: The index of the baseline.
        arm: The index of the arm.
    """
    residuals = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    arms, repetitions = logs.shape
    degrees = (arms - 1) * (repetitions - 1)
    pooled = 2 * float((residuals**2).sum()) / degrees / repetitions
    paired = float(np.var(logs[arm] - logs[baseline], ddof=1)) / repetitions
    return VariancePart(*max((pooled, degrees), (paired, repetitions - 1)))


def rounds_error(
    baseline: Sequence[Sequence[float]], arm: Sequence[Sequence[float]]
) -> VariancePart:
    """Return the error of the log ratio of two step costs, from one process of each arm.

    To the error of the rounds, a typical difference between processes is added. With one round, or
    if a round took no measurable time, the error is unknown.

    Args:
        baseline: For each point of the run, the seconds of a step in each interleaved round.
        arm: The same for the arm: the rounds are paired.
    """
    points = min(len(baseline), len(arm))
    rounds = min(len(one) for one in (*baseline[:points], *arm[:points]))
    pair = [np.asarray([one[:rounds] for one in each[:points]]) for each in (baseline, arm)]
    if rounds < 2 or min(one.min() for one in pair) <= 0:  # a clock may be coarser than a block
        return VariancePart(0.0, 1)
    chosen = np.random.default_rng(_SEED).integers(rounds, size=(_RESAMPLES, rounds))
    quartiles = [np.log(np.percentile(one[:, chosen], 25, axis=-1)).mean(axis=0) for one in pair]
    variance = float(np.var(quartiles[1] - quartiles[0])) * rounds / (rounds - 1)
    return VariancePart(variance + _PROCESSES**2, rounds - 1)


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Correct p values for their number (Holm, 1979); None counts as an arm without evidence."""
    known = [1.0 if p is None else p for p in p_values]
    corrected, largest = list(known), 0.0
    for rank, index in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        largest = corrected[index] = max(largest, min(1.0, (len(known) - rank) * known[index]))
    return tuple(None if p is None else c for p, c in zip(p_values, corrected, strict=True))


# --- curves and their distance ---


@attrs.frozen(eq=False, slots=False)
class CostCurve:
    """The final results of an arm, by schedule and seed; higher is better."""

    log_costs: Array
    """Of the schedules, ascending."""
    results: Array

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return int(self.results.shape[1])

    @property
    def contrast(self) -> float:
        """The difference of the first and the last schedule's results, in standard errors."""
        difference = self.results[-1] - self.results[0]
        error = difference.std(ddof=1) / sqrt(self.seeds)
        return abs(float(difference.mean())) / max(float(error), 1e-300)

    @cached_property
    def means(self) -> Array:
        """The means over the seeds, made monotone; ties are parted by a hair."""
        means = isotonic_regression(self.results.mean(axis=1)).x
        hair = max(1e-9 * np.ptp(means), 1e-12 * np.abs(means).max(), 1e-300)
        return means + hair * np.arange(len(means))

    @property
    def ends(self) -> tuple[float, float]:
        """The worst and the best result."""
        return float(self.means[0]), float(self.means[-1])

    def without(self, seed: int) -> "CostCurve":
        """Return the curve without the seed at this index."""
        return CostCurve(self.log_costs, np.delete(self.results, seed, 1))

    def cost(self, results: Array, shape: Shape = "smooth", *, extend: bool = False) -> Array:
        """Return the log costs; beyond the ends they stay constant, or follow a straight line."""
        inside = np.clip(results, *self.ends)
        if not extend:
            return self._inner_cost(inside, shape)
        slopes = np.diff(self.log_costs) / np.diff(self.means)
        slope = np.where(results > inside, slopes[-1], slopes[0])
        return self._inner_cost(inside, shape) + slope * (results - inside)

    @cached_property
    def _interpolated(self) -> Any:
        """The log costs, and the scale on which a curve bends more, as functions of results."""
        bent = -np.exp(-self.log_costs / 2)
        return PchipInterpolator(self.means, np.stack([self.log_costs, bent], axis=1))

    def _inner_cost(self, results: Array, shape: Shape) -> Array:
        if shape == "straight":
            return np.interp(results, self.means, self.log_costs)
        smooth, bent = self._interpolated(results).T
        return smooth if shape == "smooth" else -2 * np.log(-bent)


class Distance(NamedTuple):
    """How far the arm's curve is to the left of the baseline's."""

    kind: DistanceKind
    """Whether the curves reach the same results, or else which bound their ends give."""
    results: tuple[float, ...]
    """The results at which the distance is measured, from the worst to the best."""
    at: tuple[LogInterval, ...]
    """The distance at each of them."""
    mean: LogInterval


class Shares(NamedTuple):
    """Shares of the baseline's range of results."""

    both: float
    """That the arm reaches as well."""
    faster: float
    """That the arm reaches at less cost or, beyond its ends, with its cheapest schedule already."""
    slower: float
    """The same for the baseline: the arm does not reach it with its most expensive schedule."""


def measure(
    baseline: CostCurve,
    arm: CostCurve,
    *,
    level: float | None = None,
    paired: bool = True,
    cost: VariancePart,
) -> Distance | None:
    """Measure the distance between two curves of at least two schedules and seeds.

    Args:
        baseline: The curve of the baseline.
        arm: The curve of the arm; its seeds are in the baseline's order if they are paired.
        level: A result at which to measure. Default: all results that both curves reach, or all
            that the baseline reaches if there are none.
        paired: Whether the seeds of both curves are the same.
        cost: The error of the log ratio of costs.

    Returns:
        The distance; None if the ends of the curves give no bound at the level, or if the curves
        are too noisy for a distance, or their ends for a bound.
    """
    kind = _kind(baseline, arm, level)
    if kind is None or (kind == "distance" and min(baseline.contrast, arm.contrast) < CONTRAST):
        return None
    if kind != "distance" and not _are_apart(baseline, arm, kind, level, paired):
        return None

    def sample(base: CostCurve, other: CostCurve, *, extend: bool) -> Array:
        """Return the mean distance and the distances, by interpolation."""
        at = _results(base, other, kind, level)
        rows = [
            base.cost(at, shape, extend=extend) - other.cost(at, shape, extend=extend)
            for shape in get_args(Shape)
        ]
        return np.asarray([[row.mean(), *row] for row in rows])

    parts = [cost]
    for pairs in _replicates(baseline, arm, paired):
        # Without a seed, a curve may end before the level.
        values = [sample(*pair, extend=level is not None) for pair in pairs]
        parts.append(VariancePart((len(pairs) - 1) * np.var(values, axis=0), len(pairs) - 1))
    if not all(np.isfinite(part.variance).all() for part in parts):
        return None  # without one seed, the curves don't reach the same results
    mean, *at = intervals_of(sample(baseline, arm, extend=False), parts)
    if (kind == "at least" and mean.value <= 0) or (kind == "at most" and mean.value >= 0):
        mean = mean._replace(p=1.0)
    return Distance(kind, tuple(_results(baseline, arm, kind, level).tolist()), tuple(at), mean)


def _replicates(
    baseline: CostCurve, arm: CostCurve, paired: bool
) -> Iterator[list[tuple[CostCurve, CostCurve]]]:
    """Yield the curves without each seed: of both at once if they are paired."""
    if paired:
        yield [(baseline.without(i), arm.without(i)) for i in range(arm.seeds)]
        return
    yield [(baseline.without(i), arm) for i in range(baseline.seeds)]
    yield [(baseline, arm.without(i)) for i in range(arm.seeds)]


def _kind(base: CostCurve, arm: CostCurve, level: float | None) -> DistanceKind | None:
    """Return what the ends of the curves determine."""
    if level is None:
        if max(base.ends[0], arm.ends[0]) < min(base.ends[1], arm.ends[1]):
            return "distance"
        return "at least" if arm.ends[0] >= base.ends[1] else "at most"
    places = [(level > curve.ends[1]) - (level < curve.ends[0]) for curve in (base, arm)]
    if places == [0, 0]:
        return "distance"
    if places[0] == places[1]:
        return None
    return "at least" if places[0] > places[1] else "at most"


def _are_apart(
    baseline: CostCurve, arm: CostCurve, kind: DistanceKind, level: float | None, paired: bool
) -> bool:
    """Return whether the ends that give a bound differ with 95 % confidence, and not by chance."""
    if level is None:
        better, worse = (arm, baseline) if kind == "at least" else (baseline, arm)
        if paired:
            gaps = [[better.results[0] - worse.results[-1]]]
        else:
            gaps = [[better.results[0], -worse.results[-1]]]
    else:
        gaps = [[curve.results[0] - level] for curve in (baseline, arm) if level < curve.ends[0]]
        gaps += [[level - curve.results[-1]] for curve in (baseline, arm) if level > curve.ends[1]]
    return all(_interval(values).low > 0 for values in gaps)


def _interval(samples: Sequence[Array]) -> LogInterval:
    """Return the interval of the sum of the means of independent samples."""
    parts = [VariancePart(np.var(one, ddof=1) / len(one), len(one) - 1) for one in samples]
    (found,) = intervals_of(np.full((1, 1), sum(sample.mean() for sample in samples)), parts)
    return found


def _results(base: CostCurve, arm: CostCurve, kind: DistanceKind, level: float | None) -> Array:
    if level is not None:
        return np.asarray([level])
    low, high = base.ends
    if kind == "distance":
        low, high = max(low, arm.ends[0]), min(high, arm.ends[1])
    return np.linspace(low, high, _POINTS) if low < high else np.full(_POINTS, np.nan)


def shares_of(baseline: CostCurve, arm: CostCurve) -> Shares:
    """Return the shares of the baseline's results on which there is a statement."""
    results = np.linspace(*baseline.ends, 1001)
    both = (results >= arm.ends[0]) & (results <= arm.ends[1])
    gains = baseline.cost(results) - arm.cost(results)
    return Shares(
        float(both.mean()),
        float((both | ((results < arm.ends[0]) & (gains >= 0))).mean()),
        float((both | ((results > arm.ends[1]) & (gains <= 0))).mean()),
    )


def extension(baseline: CostCurve, arm: CostCurve, level: float | None) -> float | None:
    """Return how much longer, or shorter, a schedule of the arm would have to be, at most 8 times.

    Below 1 for a schedule shorter than the first one, above 1 for one that is longer than the last
    one; None if the arm reaches the level, or else all results of the baseline, already.
    """
    worst, best = baseline.ends if level is None else (level, level)
    missing = arm.ends[0] - worst, best - arm.ends[1]
    if max(missing) <= 0:
        return None
    at, end = (worst, 0) if missing[0] >= missing[1] else (best, -1)
    further = float(arm.cost(at, extend=True) - arm.log_costs[end])
    sign = -1 if end == 0 else 1
    return exp(sign * min(max(abs(further), log(1.1)), log(8)))
