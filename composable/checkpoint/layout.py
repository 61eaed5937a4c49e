"""Blocks of tensors."""

import math
from collections.abc import Sequence
from typing import Any

import attrs

__all__ = ["Region", "as_tuple", "check_integers", "cover"]


def as_tuple(values: Sequence[int]) -> Any:
    """Convert a list, which `check_integers` then checks, to a tuple."""
    return tuple(values) if isinstance(values, (tuple, list)) else values


def check_integers(_: Any, field: "attrs.Attribute[Any]", values: Any) -> None:
    """Raise a TypeError unless a field is a tuple of integers."""
    if not isinstance(values, tuple) or not all(type(v) is int for v in values):
        raise TypeError(
            f"{field.name}={values!r} must be a list of integers, one for each dimension."
        )


@attrs.frozen
class Region:
    """A block of a tensor.

    Args:
        offsets: The index of its first element, in each dimension.
        sizes: Its size in each dimension.

    Raises:
        ValueError: The numbers of offsets and sizes differ.

    Example:
        >>> from composable.checkpoint import Region
        >>> Region((2, 0), (2, 8)).overlap(Region((3, 4), (4, 4)))
        Region(offsets=(3, 4), sizes=(1, 4))
    """

    offsets: tuple[int, ...] = attrs.field(converter=as_tuple, validator=check_integers)
    sizes: tuple[int, ...] = attrs.field(converter=as_tuple, validator=check_integers)

    def __attrs_post_init__(self) -> None:
        if len(self.offsets) != len(self.sizes):
            raise ValueError(
                f"offsets={self.offsets} and sizes={self.sizes} must have the same length: one "
                "number for each dimension."
            )

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Region":
        """Return the region of all elements of a tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        """The index after its last element, in each dimension."""
        return tuple(o + s for o, s in zip(self.offsets, self.sizes, strict=True))

    def overlap(self, other: "Region") -> "Region | None":
        """Return the elements of both regions, or None if there are none."""
        starts = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(min(a, b) - s for a, b, s in zip(self.ends, other.ends, starts, strict=True))
        return Region(starts, sizes) if all(size > 0 for size in sizes) else None

    def within(self, outer: "Region") -> tuple[slice, ...]:
        """Return the index of this region in a tensor of the elements of another."""
        starts = [a - b for a, b in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(s, s + size) for s, size in zip(starts, self.sizes, strict=True))

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of a shape has this region."""
        return len(self.offsets) == len(shape) and all(
            o >= 0 and s >= 0 and o + s <= n
            for o, s, n in zip(self.offsets, self.sizes, shape, strict=True)
        )


def cover(shape: Sequence[int], regions: Sequence[Region]) -> bool:
    """Return whether regions have each element of a tensor once; an empty tensor has one region.

    Example:
        >>> from composable.checkpoint.layout import Region, cover
        >>> cover((3,), [Region((0,), (1,)), Region((1,), (2,))])
        True
        >>> cover((3,), [Region((0,), (2,)), Region((1,), (2,))])
        False
    """
    if not all(region.fits(shape) for region in regions):
        return False
    if math.prod(shape) == 0:
        return list(regions) == [Region.whole(shape)]
    if sum(region.count for region in regions) != math.prod(shape):
        return False
    return all(region.count for region in regions) and not _any_overlap(regions)


def _any_overlap(regions: Sequence[Region]) -> bool:
    if len(regions) < 2:
        return False
    # Along the dimension that is divided most, few regions are compared with one another.
    axis = max(
        range(len(regions[0].sizes)), key=lambda dim: len({each.offsets[dim] for each in regions})
    )
    ordered = sorted(regions, key=lambda region: region.offsets[axis])
    for position, region in enumerate(ordered):
        for other in ordered[position + 1 :]:
            if other.offsets[axis] >= region.ends[axis]:
                break
            if region.overlap(other):
                return True
    return False
