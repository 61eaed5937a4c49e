"""The horizontal distance between two curves of result over cost.

The mean final results over the seeds at each schedule, made monotone, are interpolated over the
logarithm of cost (PCHIP: monotone cubics). The distance at a result is the logarithm of the
baseline's cost of reaching it, divided by the arm's. Its mean over the results that both curves
reach summarizes it.

Intervals come from the jackknife over the seeds, with the error of the measured costs added. How a
curve bends between its schedules is not known, so an interval covers those of two other
interpolations: one that bends more, over 1 / sqrt(cost), and straight lines.
"""

from collections.abc import Iterator
from math import exp, log, sqrt
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import attrs

from composable.comparison.analysis.statistics import Interval, Part, import_scipy, intervals_of

__all__ = [
    "CONTRAST",
    "POINTS",
    "Curve",
    "Distance",
    "Kind",
    "Shares",
    "extension",
    "measure",
    "shares_of",
]

Array: TypeAlias = Any
"""A NumPy array: NumPy is imported on its first use."""
Kind: TypeAlias = Literal["distance", "at least", "at most"]
Shape: TypeAlias = Literal["smooth", "bent", "straight"]

CONTRAST = 4.0
"""The least contrast of a curve: with less, intervals are too narrow."""
POINTS = 33
"""The results, evenly spaced, at which the distance is measured."""


@attrs.frozen(eq=False)
class Curve:
    """The final results of an arm.

    Args:
        log_costs: The logarithms of the costs of the schedules, ascending.
        results: The results, by schedule and seed; higher is better.
    """

    log_costs: Array
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

    def without(self, seed: int) -> "Curve":
        """Return the curve without the seed at this index."""
        _, np = import_scipy()
        return Curve(self.log_costs, np.delete(self.results, seed, 1))


@attrs.frozen
class Distance:
    """How far the arm's curve is to the left of the baseline's."""

    kind: Kind
    """Whether the curves reach the same results, or else which bound their ends give."""
    results: tuple[float, ...]
    """The results at which the distance is measured, from the worst to the best."""
    at: tuple[Interval, ...]
    """The distance at each of them."""
    mean: Interval
    pair: float
    """The standard deviation of a pair of seeds, from the jackknife."""


class Shares(NamedTuple):
    """Shares of the baseline's range of results."""

    both: float
    """That the arm reaches as well."""
    faster: float
    """That the arm reaches at less cost or, beyond its ends, with its cheapest schedule already."""
    slower: float
    """The same for the baseline: the arm does not reach it with its most expensive schedule."""


class _Line:
    """The cost at which a monotone curve reaches a result."""

    def __init__(self, curve: Curve) -> None:
        from scipy.optimize import isotonic_regression

        _, np = import_scipy()
        means = isotonic_regression(curve.results.mean(axis=1)).x
        hair = max(1e-9 * np.ptp(means), 1e-12 * np.abs(means).max(), 1e-300)
        self.results = means + hair * np.arange(len(means))  # ties are parted
        self.costs = curve.log_costs

    @property
    def ends(self) -> tuple[float, float]:
        """The worst and the best result."""
        return float(self.results[0]), float(self.results[-1])

    def cost(self, results: Array, shape: Shape = "smooth", *, extend: bool = False) -> Array:
        """Return the log costs; beyond the ends those of the ends, or on a straight line."""
        _, np = import_scipy()
        inside = np.clip(results, *self.ends)
        if not extend:
            return self._inner(inside, shape)
        slopes = np.diff(self.costs) / np.diff(self.results)
        slope = np.where(results > inside, slopes[-1], slopes[0])
        return self._inner(inside, shape) + slope * (results - inside)

    def _inner(self, results: Array, shape: Shape) -> Array:
        from scipy.interpolate import PchipInterpolator

        _, np = import_scipy()
        if shape == "straight":
            return np.interp(results, self.results, self.costs)
        if shape == "bent":
            return -2 * np.log(-PchipInterpolator(self.results, -np.exp(-self.costs / 2))(results))
        return PchipInterpolator(self.results, self.costs)(results)


def measure(
    baseline: Curve, arm: Curve, *, level: float | None = None, paired: bool = True, cost: Part
) -> Distance | None:
    """Measure the distance between two curves of at least two schedules and seeds.

    Args:
        baseline: The curve of the baseline.
        arm: That of the arm; its seeds are in the baseline's order if they are paired.
        level: A result at which to measure. Default: all results that both curves reach, or all
            that the baseline reaches if there are none.
        paired: Whether the seeds of both curves are the same.
        cost: The error of the log ratio of costs.

    Returns:
        The distance; None if the ends of the curves give no bound at the level, or if the curves
        are too noisy for a distance.
    """
    _, np = import_scipy()
    kind = _kind(_Line(baseline), _Line(arm), level)
    if kind is None or (kind == "distance" and min(baseline.contrast, arm.contrast) < CONTRAST):
        return None

    def sample(one: Curve, other: Curve, whole: bool = False) -> Array:
        """Return the mean distance and the distances, by interpolation."""
        base, line = _Line(one), _Line(other)
        at = _results(base, line, kind, level)
        extend = level is not None and not whole  # without a seed, a curve may end before the level
        rows = [
            base.cost(at, shape, extend=extend) - line.cost(at, shape, extend=extend)
            for shape in get_args(Shape)
        ]
        return np.asarray([[row.mean(), *row] for row in rows])

    whole = sample(baseline, arm, whole=True)
    parts = [
        Part(_jackknife([sample(*pair) for pair in pairs]), len(pairs) - 1)
        for pairs in _replicates(baseline, arm, paired)
    ]
    if not all(np.isfinite(part.variance).all() for part in parts):
        return None  # without one seed, the curves don't reach the same results
    mean, *at = intervals_of(whole, [*parts, cost])
    if (kind == "at least" and mean.value <= 0) or (kind == "at most" and mean.value >= 0):
        mean = mean._replace(p=1.0)
    pair = sqrt(float(sum(part.variance[0, 0] for part in parts)) * arm.seeds)
    shown = _results(_Line(baseline), _Line(arm), kind, level)
    return Distance(kind, tuple(map(float, shown)), tuple(at), mean, pair)


def _replicates(baseline: Curve, arm: Curve, paired: bool) -> Iterator[list[tuple[Curve, Curve]]]:
    """Yield the curves without each seed: of both at once if they are paired."""
    if paired:
        yield [(baseline.without(i), arm.without(i)) for i in range(arm.seeds)]
        return
    yield [(baseline.without(i), arm) for i in range(baseline.seeds)]
    yield [(baseline, arm.without(i)) for i in range(arm.seeds)]


def _jackknife(replicates: list[Array]) -> Array:
    """Return the variance of an estimate from its values without each seed."""
    _, np = import_scipy()
    return (len(replicates) - 1) * np.var(replicates, axis=0)


def _kind(base: _Line, arm: _Line, level: float | None) -> Kind | None:
    """Return what the ends of the curves determine."""
    if level is None:
        if max(base.ends[0], arm.ends[0]) < min(base.ends[1], arm.ends[1]):
            return "distance"
        return "at least" if arm.ends[0] >= base.ends[1] else "at most"
    places = [(level > line.ends[1]) - (level < line.ends[0]) for line in (base, arm)]
    if places == [0, 0]:
        return "distance"
    if places[0] == places[1]:
        return None
    return "at least" if places[0] > places[1] else "at most"


def _results(base: _Line, arm: _Line, kind: Kind, level: float | None) -> Array:
    _, np = import_scipy()
    if level is not None:
        return np.asarray([level])
    low, high = base.ends
    if kind == "distance":
        low, high = max(low, arm.ends[0]), min(high, arm.ends[1])
    return np.linspace(low, high, POINTS) if low < high else np.full(POINTS, np.nan)


def shares_of(baseline: Curve, arm: Curve) -> Shares:
    """Return the shares of the baseline's results on which there is a statement."""
    _, np = import_scipy()
    base, other = _Line(baseline), _Line(arm)
    results = np.linspace(*base.ends, 1001)
    both = (results >= other.ends[0]) & (results <= other.ends[1])
    gains = base.cost(results) - other.cost(results)
    return Shares(
        float(both.mean()),
        float((both | ((results < other.ends[0]) & (gains >= 0))).mean()),
        float((both | ((results > other.ends[1]) & (gains <= 0))).mean()),
    )


def extension(baseline: Curve, arm: Curve, level: float | None) -> float | None:
    """Return how much longer, or shorter, a schedule of the arm would have to be.

    Args:
        baseline: The curve of the baseline.
        arm: That of the arm.
        level: The result to reach. Default: those of the baseline.

    Returns:
        Below 1 for a schedule shorter than the first one, above 1 for one that is longer than the
        last one, at most by a factor of 8; None if the arm reaches the result already.
    """
    base, other = _Line(baseline), _Line(arm)
    worst, best = base.ends if level is None else (level, level)
    missing = other.ends[0] - worst, best - other.ends[1]
    if max(missing) <= 0:
        return None
    at, end = (worst, 0) if missing[0] >= missing[1] else (best, -1)
    further = float(other.cost(at, extend=True) - other.costs[end])
    sign = -1 if end == 0 else 1
    return exp(sign * min(max(abs(further), log(1.1)), log(8)))
