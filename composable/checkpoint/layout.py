"""The layout of a sharded checkpoint: which block of which tensor is in which file.

`layout.json` has, for each tensor, its dtype, its shape, and the blocks into which it is divided:

    {"tensors": {"w": {"dtype": "F32", "shape": [4, 2], "slices": [
        {"file": 1, "offsets": [0, 0], "sizes": [2, 2]},
        {"file": 2, "offsets": [2, 0], "sizes": [2, 2]}]}}}

Each file has at most one block of a tensor, under the name of the tensor. The blocks of a tensor
cover it, and do not overlap.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from composable.checkpoint import _json
from composable.checkpoint._json import JSON
from composable.checkpoint._safetensors import DTYPES, MAX_DIMENSIONS, are_counts, dtype_name
from composable.checkpoint.errors import DamagedCheckpointError, UnsavableError
from composable.checkpoint.manifest import MAX_STATE
from composable.core._printable import shorten

__all__ = [
    "Region",
    "Stored",
    "as_tuple",
    "check_integers",
    "cover",
    "dump_layout",
    "parse_layout",
]


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


@attrs.frozen
class Stored:
    """A tensor of a checkpoint, and the blocks that its files have.

    Args:
        dtype: Its dtype.
        shape: Its shape.
        slices: The block that a file has, by the number of the file, from 1.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    slices: Mapping[int, Region]


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


def dump_layout(layout: Mapping[str, Stored]) -> bytes:
    """Encode a layout as JSON."""
    tensors = {
        name: {
            "dtype": dtype_name(stored.dtype),
            "shape": list(stored.shape),
            "slices": [
                {"file": file, "offsets": list(region.offsets), "sizes": list(region.sizes)}
                for file, region in sorted(stored.slices.items())
            ],
        }
        for name, stored in sorted(layout.items())
    }
    raw = _json.dump({"tensors": tensors})
    if len(raw) > MAX_STATE:
        raise UnsavableError(
            f"the layout has {len(raw)} bytes, more than the maximum of {MAX_STATE}."
        )
    return raw


def parse_layout(raw: bytearray, files: int, where: str) -> dict[str, Stored]:
    """Decode and check a layout.

    Args:
        raw: The JSON.
        files: Number of files of tensors.
        where: The file name for error messages.

    Raises:
        DamagedCheckpointError: It is not a layout, or the blocks of a tensor do not cover it.
    """
    body = _json.load(raw, where)
    if not isinstance(body, dict) or body.keys() != {"tensors"}:
        raise DamagedCheckpointError(f"{where} is not a mapping with the key tensors.")
    tensors = body["tensors"]
    if not isinstance(tensors, dict):
        raise DamagedCheckpointError(f"{where}: the tensors are not a mapping.")
    return {name: _stored(name, entry, files, where) for name, entry in tensors.items()}


def _stored(name: str, entry: JSON, files: int, where: str) -> Stored:
    about = f"{where}: tensor {name[:200]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "slices"}:
        raise DamagedCheckpointError(f"{about} must have exactly the keys dtype, shape and slices.")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise DamagedCheckpointError(f"{about} has dtype {shorten(entry['dtype'], 40)}.")
    shape, slices = entry["shape"], entry["slices"]
    if not are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise DamagedCheckpointError(f"{about} has invalid shape {shorten(shape, 80)}.")
    if not isinstance(slices, list) or not all(_is_slice(each, files) for each in slices):
        raise DamagedCheckpointError(f"{about} has invalid slices {shorten(slices, 80)}.")
    regions = {each["file"]: Region(each["offsets"], each["sizes"]) for each in slices}
    if len(regions) != len(slices) or not cover(shape, list(regions.values())):
        raise DamagedCheckpointError(
            f"{about} of shape {shape} is not divided into its slices: they overlap, leave a gap, "
            "or two of them are in one file."
        )
    return Stored(dtype, tuple(shape), regions)


def _is_slice(entry: JSON, files: int) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"file", "offsets", "sizes"}
        and type(entry["file"]) is int
        and 1 <= entry["file"] <= files
        and are_counts(entry["offsets"])
        and are_counts(entry["sizes"])
        and len(entry["offsets"]) == len(entry["sizes"])
    )
