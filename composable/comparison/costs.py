"""The seconds of training that follow from calibrated costs of steps."""

import numpy as np

from composable.comparison.records import StepCost

__all__ = ["seconds_until"]

_PERCENTILE = 25
"""Of the rounds: other load on the machine makes steps slower, never faster."""


def seconds_until(cost: StepCost, batches: int, progress: float) -> float:
    """Return the seconds of training from the start of a run until a fraction of it.

    The cost of a step at a point is the 25th percentile over the rounds. It is interpolated
    linearly between the points, and constant before the first and after the last one.

    Args:
        cost: The calibrated cost of a step at some points of the run.
        batches: The number of steps of the whole run.
        progress: The fraction of the run, from 0 to 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> from composable.comparison.costs import seconds_until
        >>> from composable.comparison.records import StepCost
        >>> cost = StepCost("plain", {}, "100ba", (0.25, 0.75), ((0.01, 0.01), (0.03, 0.03)))
        >>> round(seconds_until(cost, 100, 0.5), 6), round(seconds_until(cost, 100, 1.0), 6)
        (0.625, 2.0)
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress={progress!r} must be a fraction of the run, from 0 to 1.")
    if batches < 0:
        raise ValueError(f"batches={batches!r} must be the number of steps, at least 0.")
    points = np.asarray(cost.progress, dtype=float)
    if not len(points) or len(points) != len(cost.seconds) or not all(map(len, cost.seconds)):
        raise ValueError(
            f"the cost of {cost.arm!r} must have seconds for each of its points, and has "
            f"{len(points)} points and {[len(one) for one in cost.seconds]} rounds."
        )
    steps = [float(np.percentile(rounds, _PERCENTILE)) for rounds in cost.seconds]
    grid = np.concatenate([[0.0], points[(points > 0) & (points < progress)], [progress]])
    values = np.interp(grid, points, steps)
    return float(batches * np.sum(np.diff(grid) * (values[:-1] + values[1:]) / 2))
