"""Curves of metrics: their points, and how many of them are drawn."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

__all__ = ["Curve", "Drawn", "Grid"]


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


@attrs.frozen
class Grid:
    """Intervals of equal length that the curves of one metric share.

    Args:
        start: The first batch.
        length: The length of an interval in batches; 0 to keep every point.
    """

    start: int
    length: float

    @classmethod
    def over(cls, curves: Iterable[Curve], most: int) -> "Grid":
        """Return the grid of some curves that has at most `most` intervals."""
        longest = [curve for curve in curves if len(curve)]
        if all(len(curve) <= 2 * most for curve in longest):
            return cls(0, 0)
        start = min(curve.batches[0] for curve in longest)
        end = max(curve.batches[-1] for curve in longest)
        return cls(start, (end - start + 1) / most)

    def thin(self, curve: Curve) -> Drawn:
        """Keep the extremes of each interval, and compute its mean.

        Example:
            >>> from composable.report.curves import Curve, Grid
            >>> curve = Curve()
            >>> for batch in range(1000):
            ...     curve.add(batch, 9.0 if batch == 555 else 1.0)
            >>> drawn = Grid.over([curve], most=10).thin(curve)
            >>> (555, 9.0) in drawn.points, len(drawn.means)
            (True, 10)
        """
        if not self.length:
            return Drawn(list(curve.finite()), None)
        points: list[tuple[int, float]] = []
        means: list[tuple[float, float]] = []
        for interval, inside in self._intervals(curve):
            low, high = min(inside, key=_value), max(inside, key=_value)
            points += sorted({low, high})
            mean = math.fsum(value / len(inside) for _, value in inside)
            means.append((self.start + (interval + 0.5) * self.length, mean))
        return Drawn(points, means)

    def _intervals(self, curve: Curve) -> Iterator[tuple[int, Sequence[tuple[int, float]]]]:
        inside: list[tuple[int, float]] = []
        current = -1
        for point in curve.finite():
            interval = int((point[0] - self.start) / self.length)
            if interval != current and inside:
                yield current, inside
                inside = []
            current = interval
            inside.append(point)
        if inside:
            yield current, inside


def _value(point: tuple[int, float]) -> Any:
    return point[1]
