"""Curves of metrics: their points, and how many of them are drawn."""

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import attrs


@attrs.define(eq=False)
class Curve:
    """The values of a metric, by the number of batches before them.

    A point replaces the points at its batch and after it, which a resumed run logs again.

    Example:
        >>> from composable.report.curves import Curve
        >>> curve = Curve()
        >>> for batch, value in [(1, 3.0), (2, 2.0), (3, 1.5), (2, 1.9)]:
        ...     curve.add(batch, value)
        >>> list(curve)
        [(1, 3.0), (2, 1.9)]
    """

    # 8 bytes a number: a run has millions of steps.
    batches: "array[int]" = attrs.field(factory=lambda: array("q"))
    values: "array[float]" = attrs.field(factory=lambda: array("d"))

    def add(self, batch: int, value: float) -> None:
        """Add a point."""
        while self.batches and self.batches[-1] >= batch:
            self.batches.pop()
            self.values.pop()
        self.batches.append(batch)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self.batches, self.values, strict=True))

    def finite(self) -> Iterator[tuple[int, float]]:
        """Iterate over the points that are neither NaN nor infinite."""
        return ((batch, value) for batch, value in self if math.isfinite(value))

    def nonfinite(self) -> list[int]:
        """Return the batches whose value is NaN or infinite."""
        return [batch for batch, value in self if not math.isfinite(value)]


@attrs.frozen(eq=False)
class Drawn:
    """The points of a curve that are drawn."""

    points: list[tuple[int, float]]
    """The curve, or its lowest and highest points in each interval of the grid."""
    means: list[tuple[float, float]] | None
    """The mean of each interval, at its middle; None if `points` is the whole curve."""


def thin(curves: Sequence[Curve], most: int) -> list[Drawn]:
    """Keep the extremes of each interval of a grid that curves share, and compute the means.

    Args:
        curves: The curves of one metric, which stay as they are if all are short: of at most twice
            as many points as there are intervals.
        most: The number of intervals.

    Example:
        >>> from composable.report.curves import Curve, thin
        >>> curve = Curve()
        >>> for batch in range(1000):
        ...     curve.add(batch, 9.0 if batch == 555 else 1.0)
        >>> (drawn,) = thin([curve], most=10)
        >>> (555, 9.0) in drawn.points, len(drawn.means)
        (True, 10)
    """
    if all(len(curve) <= 2 * most for curve in curves):
        return [Drawn(list(curve.finite()), None) for curve in curves]
    start = min(curve.batches[0] for curve in curves if len(curve))
    end = max(curve.batches[-1] for curve in curves if len(curve))
    return [_thin(curve, start, (end - start + 1) / most) for curve in curves]


def _thin(curve: Curve, start: int, length: float) -> Drawn:
    points: list[tuple[int, float]] = []
    means: list[tuple[float, float]] = []
    for interval, group in groupby(curve.finite(), lambda point: int((point[0] - start) / length)):
        inside = list(group)
        low, high = min(inside, key=itemgetter(1)), max(inside, key=itemgetter(1))
        points += sorted({low, high})
        scale = max(-low[1], high[1], 1.0)  # the sum of large floats would overflow
        mean = scale * math.fsum(value / scale / len(inside) for _, value in inside)
        means.append((start + (interval + 0.5) * length, min(max(mean, low[1]), high[1])))
    return Drawn(points, means)
