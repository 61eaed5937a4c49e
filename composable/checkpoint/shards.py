"""Blocks of tensors: the part that one of several processes has, and the DTensors of PyTorch."""

import math
import sys
import zlib
from collections.abc import Sequence
from operator import add
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.checks import check_tensor
from composable.checkpoint.errors import UnsavableError


def _as_tuple(values: Sequence[int]) -> Any:
    """Convert a list, which `_check_integers` then checks, to a tuple."""
    return tuple(values) if isinstance(values, (tuple, list)) else values


def _check_integers(_: Any, field: "attrs.Attribute[Any]", values: Any) -> None:
    """Raise a TypeError unless a field is a tuple of integers."""
    if not isinstance(values, tuple) or not set(map(type, values)) <= {int}:
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

    offsets: tuple[int, ...] = attrs.field(converter=_as_tuple, validator=_check_integers)
    sizes: tuple[int, ...] = attrs.field(converter=_as_tuple, validator=_check_integers)

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
        return tuple(map(add, self.offsets, self.sizes))

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
        >>> from composable.checkpoint.shards import Region, cover
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


# --- parts of processes


@attrs.frozen(eq=False)
class TensorShard:
    """The block of a tensor that this process has, for `write` with several processes.

    A `DTensor` needs none: `write` accepts it as it is.

    Args:
        tensor: The elements that this process has, possibly none.
        shape: The shape of the whole tensor.
        offsets: The index of the first element of the block, in each dimension.

    Raises:
        ValueError: The whole tensor has no such block.

    Example:
        >>> from composable.checkpoint import TensorShard
        >>> TensorShard(torch.ones(2, 3), shape=(4, 3), offsets=(2, 0)).region
        Region(offsets=(2, 0), sizes=(2, 3))
    """

    tensor: Tensor
    shape: tuple[int, ...] = attrs.field(converter=_as_tuple, validator=_check_integers)
    offsets: tuple[int, ...] = attrs.field(converter=_as_tuple, validator=_check_integers)

    def __attrs_post_init__(self) -> None:
        check_tensor("tensor", self.tensor)
        if is_dtensor(self.tensor):
            raise TypeError("tensor must be a plain tensor; write() accepts a DTensor as it is.")
        same = len(self.offsets) == len(self.shape) == self.tensor.ndim
        if not (same and self.region.fits(self.shape)):
            raise ValueError(
                f"shape={self.shape} and offsets={self.offsets} must describe a tensor in which "
                f"a block of shape {tuple(self.tensor.shape)} begins there."
            )

    @property
    def region(self) -> Region:
        """The block of the whole tensor."""
        return Region(self.offsets, self.tensor.shape)


def is_dtensor(value: object) -> bool:
    """Return whether a value is a `DTensor`."""
    # Only a program that uses DTensors has imported their module, which takes long.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(tensor: Any) -> Tensor:
    """Return the part of a `DTensor` that this process has."""
    local = tensor.detach().to_local()
    return local.wait() if hasattr(local, "wait") else local  # type: ignore[no-any-return]


def region_of(tensor: Any) -> Region | None:
    """Return the block of a `DTensor` that this process has, or None if it is not in the mesh.

    Raises:
        ValueError: Its placements divide it into other parts than blocks.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError("is not summed over its processes yet: use redistribute()")
    if tensor.device_mesh.get_coordinate() is None:
        return None
    if any(type(placement).__name__ == "_StridedShard" for placement in tensor.placements):
        return _strided_region(tensor)
    (chunk,) = tensor.__create_chunk_list__()
    return Region(chunk.offsets, chunk.sizes)


def _strided_region(tensor: Any) -> Region:
    """Return the block of a tensor that was divided in another order than the mesh's.

    The indices of each dimension are divided in the same way, without communication.
    """
    from torch.distributed.tensor import Replicate, distribute_tensor

    starts, sizes = [], []
    for dim, size in enumerate(tensor.shape):
        indices = torch.arange(size).view([size if d == dim else 1 for d in range(tensor.ndim)])
        placements = [
            placement if getattr(placement, "dim", None) == dim else Replicate()
            for placement in tensor.placements
        ]
        divided = distribute_tensor(indices, tensor.device_mesh, placements, src_data_rank=None)
        own = local_of(divided).flatten().tolist()
        start = own[0] if own else 0
        if own != list(range(start, start + len(own))):
            raise ValueError(
                f"is divided into parts that are not contiguous, by {tensor.placements}"
            )
        starts.append(start)
        sizes.append(len(own))
    return Region(starts, sizes)


def as_shard(name: str, tensor: Tensor | TensorShard) -> TensorShard | None:
    """Return the part of a tensor that this process has; None if it has none.

    Raises:
        UnsavableError: It is a `DTensor` whose parts cannot be saved.
    """
    if isinstance(tensor, TensorShard):
        return tensor
    if not is_dtensor(tensor):
        return TensorShard(tensor, tensor.shape, (0,) * tensor.ndim)
    try:
        region = region_of(tensor)
    except ValueError as error:
        raise UnsavableError(f"tensor {name!r} {error}.") from None
    return None if region is None else TensorShard(local_of(tensor), tensor.shape, region.offsets)


def writes(name: str, tensor: Any) -> bool:
    """Return whether this process, in the mesh of a `DTensor`, is the one to write its part.

    Of the processes that have the same part, the name of the tensor selects one, without
    communication.
    """
    places = zip(tensor.placements, tensor.device_mesh.get_coordinate(), strict=True)
    copies, own = 1, 0
    for dim, (placement, at) in enumerate(places):
        if placement.is_replicate():
            copies, own = copies * tensor.device_mesh.size(dim), own * tensor.device_mesh.size(dim)
            own += at
    return own == turn_of(name, copies)


def turn_of(name: str, count: int) -> int:
    """Return which of a number of processes has to write the tensor of a name."""
    return zlib.crc32(name.encode()) % count


def as_whole(name: str, tensor: Tensor | TensorShard) -> Tensor:
    """Return a tensor of which this process has all.

    Raises:
        UnsavableError: It has only a part.
    """
    if isinstance(tensor, Tensor) and not is_dtensor(tensor):
        return tensor
    shard = as_shard(name, tensor)
    if shard is None or shard.region != Region.whole(shard.shape):
        raise UnsavableError(
            f"tensor {name!r} is divided among processes: all of them must call write(), with "
            "processes=Processes.current()."
        )
    return shard.tensor


def like_dtensor(local: Tensor, like: Any) -> Tensor:
    """Return a `DTensor` with the mesh, placements and device of another, and a given part."""
    from torch.distributed.tensor import DTensor

    stride = torch.empty(like.shape, device="meta").stride()
    return DTensor.from_local(
        local.to(local_of(like).device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=stride,
    )
