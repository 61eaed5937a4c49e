"""The seconds of training that follow from calibrated costs of steps."""

from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from statistics import quantiles

import attrs

from composable.comparison.records import StepCost

__all__ = ["rescale", "seconds_until", "step_seconds"]


def seconds_until(cost: StepCost, batches: int, progress: float) -> float:
    """Return the seconds of training from the start of a run until a fraction of it.

    The cost of a step is interpolated linearly between the points, and constant before the first
    and after the last one.

    Args:
        cost: The calibrated cost of a step at some points of the run.
        batches: The number of steps of the whole run.
        progress: The fraction of the run, from 0 to 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> from composable.comparison.trials.costs import seconds_until
        >>> from composable.comparison.records import StepCost
        >>> cost = StepCost("plain", {}, "100ba", (0.25, 0.75), ((0.01, 0.01), (0.03, 0.03)))
        >>> round(seconds_until(cost, 100, 0.5), 6), round(seconds_until(cost, 100, 1.0), 6)
        (0.625, 2.0)
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress={progress!r} must be a fraction of the run, from 0 to 1.")
    if batches < 0:
        raise ValueError(f"batches={batches!r} must be the number of steps, at least 0.")
    points, steps = cost.progress, step_seconds(cost)
    grid = [0.0, *(point for point in points if 0 < point < progress), progress]
    pieces = (
        (end - start) * (_at(points, steps, start) + _at(points, steps, end)) / 2
        for start, end in pairwise(grid)
    )
    return batches * sum(pieces)


def step_seconds(cost: StepCost) -> tuple[float, ...]:
    """Return the seconds of one step at each point: the 25th percentile over the rounds.

    Other load on the machine makes steps slower, never faster, so a low percentile is closer to
    the cost itself than the mean is.

    Raises:
        ValueError: A point has no rounds, or there is no point.
    """
    if not cost.progress or len(cost.progress) != len(cost.seconds) or not all(cost.seconds):
        raise ValueError(
            f"the cost of {cost.arm!r} must have seconds for each of its points, and has "
            f"{len(cost.progress)} points and {[len(one) for one in cost.seconds]} rounds."
        )
    return tuple(
        quantiles(rounds, n=4, method="inclusive")[0] if len(rounds) > 1 else rounds[0]
        for rounds in cost.seconds
    )


def rescale(cost: StepCost, measured: StepCost, reference: StepCost) -> StepCost:
    """Scale costs to the speed that the machine had in another measurement.

    Args:
        cost: The costs to scale.
        measured: The costs of the baseline in the same measurement.
        reference: The costs of the baseline in the other measurement.
    """
    if measured is reference:
        return cost
    factors = (
        then / now if now else 1.0
        for then, now in zip(step_seconds(reference), step_seconds(measured), strict=True)
    )
    seconds = tuple(
        tuple(one * factor for one in rounds)
        for rounds, factor in zip(cost.seconds, factors, strict=True)
    )
    return attrs.evolve(cost, seconds=seconds)


def _at(points: Sequence[float], values: Sequence[float], point: float) -> float:
    """Interpolate linearly; constant outside of the points."""
    after = bisect(points, point)
    if after in (0, len(points)):
        return values[min(after, len(points) - 1)]
    low, high = points[after - 1], points[after]
    return values[after - 1] + (values[after] - values[after - 1]) * (point - low) / (high - low)
