"""Which part of each tensor each of several processes writes.

For a `DTensor` it follows from its mesh and placements, which are the same on all processes: rank 0
sends a description of its tensors, and each process compares its own with it. Only the blocks of
`TensorShard`s, which follow from nothing, are exchanged among all. Rank 0 writes whole tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composable.checkpoint._safetensors import DTYPES, dtype_name
from composable.checkpoint.errors import UnsavableError
from composable.checkpoint.layout import Region, cover
from composable.checkpoint.shards import TensorShard, is_dtensor, turn_of, writes
from composable.distributed.processes import ProcessError

__all__ = ["blocks_of", "compare", "describe", "parts_of", "writers_of"]

Tensors = Mapping[str, Tensor | TensorShard]
Description = dict[str, Any]
"""JSON: the target; the dtype, shape, division and mesh of each tensor; and the meshes."""
Blocks = dict[str, list[Sequence[int]]]
"""The offsets and sizes of the `TensorShard`s of a process, by name."""
Writers = Mapping[tuple[str, Region], int]
"""The process that writes each block of a `TensorShard`."""

_BLOCKS = "blocks"


def describe(target: str, tensors: Tensors) -> Description:
    """Describe the tensors of a process, which writes them to a target."""
    meshes: dict[Any, int] = {}  # each is described once: it lists all of its processes
    entries: dict[str, list[Any]] = {}
    for name, tensor in tensors.items():
        own: Any = tensor.tensor if isinstance(tensor, TensorShard) else tensor
        division, mesh = None if own is tensor else _BLOCKS, None
        if is_dtensor(own):
            division, mesh = str(own.placements), meshes.setdefault(own.device_mesh, len(meshes))
        entries[name] = [dtype_name(own.dtype), list(tensor.shape), division, mesh]
    ranks = [[list(mesh.shape), mesh.mesh.flatten().tolist()] for mesh in meshes]
    return {"target": target, "tensors": entries, "meshes": ranks}


def compare(own: Description, first: Description, rank: int) -> None:
    """Compare the description of a process with that of rank 0.

    Raises:
        ProcessError: They write to different targets.
        UnsavableError: Their tensors differ.
    """
    if own["target"] != first["target"]:
        raise ProcessError(
            f"rank 0 writes to {first['target']}, but rank {rank} to {own['target']}."
        )
    ours, theirs = own["tensors"], first["tensors"]
    for name in {**theirs, **ours}:
        if name not in ours and theirs[name][2] is None:
            continue  # part of a logger, which only rank 0 has
        if name not in ours or name not in theirs:
            has, lacks = (0, rank) if name in theirs else (rank, 0)
            raise UnsavableError(f"rank {has} has a tensor {name!r}, but rank {lacks} does not.")
        if ours[name][:2] != theirs[name][:2]:
            a, b = (f"{dtype} of shape {shape}" for dtype, shape, *_ in (theirs[name], ours[name]))
            raise UnsavableError(f"tensor {name!r} is {a} on rank 0, but {b} on rank {rank}.")
        # A process that is not in the mesh of rank 0 may have a copy that is divided over another.
        if _in_mesh(first, name, rank) and _division(own, name) != _division(first, name):
            raise UnsavableError(
                f"tensor {name!r} is divided in another way on rank {rank} than on rank 0."
            )


def _division(description: Description, name: str) -> list[Any]:
    """Return the placements of a tensor, and the shape and processes of its mesh."""
    _, _, division, mesh = description["tensors"][name]
    return [division] if mesh is None else [division, *description["meshes"][mesh]]


def _in_mesh(first: Description, name: str, rank: int) -> bool:
    """Return whether a process has a part of a tensor of rank 0."""
    _, *mesh = _division(first, name)
    return not mesh or rank in mesh[1]


def blocks_of(tensors: Tensors) -> Blocks:
    """Return the blocks that a process has, besides those that follow from a mesh."""
    return {
        name: [tensor.offsets, tensor.region.sizes]
        for name, tensor in tensors.items()
        if isinstance(tensor, TensorShard) and tensor.region.count
    }


def writers_of(blocks: Sequence[Blocks], first: Description) -> Writers:
    """Assign each block to one of the processes that have it; the same result on all of them.

    Args:
        blocks: The blocks of each process.
        first: The description of rank 0.

    Raises:
        UnsavableError: The blocks of a tensor overlap or leave a gap.
    """
    holders: dict[str, dict[Region, list[int]]] = {
        name: {}
        for name, (_, shape, division, _) in first["tensors"].items()
        if division == _BLOCKS and 0 not in shape
    }
    for rank, own in enumerate(blocks):
        for name, (offsets, sizes) in own.items():
            holders[name].setdefault(Region(offsets, sizes), []).append(rank)
    for name, regions in holders.items():
        shape = first["tensors"][name][1]
        if not cover(shape, list(regions)):
            raise UnsavableError(
                f"tensor {name!r} of shape {shape} is not divided into its parts: they overlap or "
                f"leave a gap. By rank: {_listed(regions)}."
            )
    return {
        (name, region): ranks[turn_of(name, len(ranks))]
        for name, regions in holders.items()
        for region, ranks in regions.items()
    }


def _listed(regions: Mapping[Region, Sequence[int]], most: int = 4) -> str:
    each = [f"{ranks[0]}: {r.sizes} from {r.offsets}" for r, ranks in regions.items()]
    return "; ".join(each[:most]) + ("; ..." if len(each) > most else "")


def parts_of(
    tensors: Tensors,
    shards: Mapping[str, TensorShard | None],
    first: Description,
    rank: int,
    writers: Writers,
) -> dict[str, TensorShard]:
    """Return the parts that a process writes.

    Args:
        tensors: Its tensors.
        shards: The part that it has of each: see `as_shard`.
        first: The description of rank 0.
        rank: The number of the process.
        writers: The process that writes each block of a `TensorShard`.
    """
    parts = {}
    for name, shard in shards.items():
        dtype, shape, division, _ = first["tensors"][name]
        own = rank == 0
        if 0 in shape:  # its parts may have other empty shapes
            shard = TensorShard(torch.empty(shape, dtype=DTYPES[dtype]), shape, [0] * len(shape))
        elif shard is None or not shard.region.count:
            continue
        elif division == _BLOCKS:
            own = rank == writers[name, shard.region]
        elif division is not None:
            own = _in_mesh(first, name, rank) and writes(name, tensors[name])
        if own:
            parts[name] = shard
    return parts
