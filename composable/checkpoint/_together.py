"""Write a checkpoint from several processes: each writes a file, and one of them commits.

Which part of a `DTensor` each process writes follows from its mesh and placements, which are the
same on all processes: rank 0 sends a description of its tensors, and each process compares its own
with it. Only the blocks of `TensorShard`s, which follow from nothing, are exchanged among all.
Rank 0 writes whole tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.object_stores import OPEN
from composable.checkpoint.atomic import clean, staging, writable, write_file
from composable.checkpoint.errors import (
    CheckpointExistsError,
    UnsavableError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import FileRecord, tensor_file
from composable.checkpoint.request import Request, finish_folder
from composable.checkpoint.safetensors import DTYPE_NAMES, DTYPES, Write, write_tensors
from composable.checkpoint.shards import (
    Region,
    TensorShard,
    as_shard,
    cover,
    is_dtensor,
    turn_of,
    writes,
)
from composable.distributed.processes import ProcessError, Processes, attempt, raise_first


def write_together(check: Callable[[], Request], processes: Processes) -> Path:
    """Write a checkpoint with a file of tensors for each process.

    Args:
        check: Checks the arguments of this process.
        processes: The processes that call this function.
    """
    request, parts = divide(check, processes)

    def together(function: Callable[[], Any]) -> list[Any]:
        return _agree(processes, *_attempt(writable(request.target)(function)))

    def commit() -> None:
        _commit(request, partial, records)
        stack.close()

    with writable(request.target), ExitStack() as stack:
        main = processes.is_main
        # Rank 0 alone locks the folder, renames it, or deletes it after an error.
        staged = staging(request.target, request.overwrite)
        paths = together(lambda: str(stack.enter_context(staged)) if main else None)
        partial = Path(paths[0])
        records = together(lambda: _write_part(request.target, partial, parts, processes))
        together(lambda: commit() if main else None)
    return request.target


def divide(
    check: Callable[[], Request], processes: Processes
) -> tuple[Request, dict[str, TensorShard]]:
    """Return what to write, and the parts of it that this process writes."""

    def prepare() -> tuple[Request, dict[str, TensorShard | None], dict[str, Any]]:
        request = check()
        shards = {name: as_shard(name, tensor) for name, tensor in request.tensors.items()}
        return request, shards, describe_tensors(str(request.target), request.tensors)

    prepared, failure, fault = _attempt(prepare)
    request, shards, own = (None, {}, None) if prepared is None else prepared
    first = _connected(lambda: processes.broadcast(own), failure)
    if failure is None and first is not None:
        _, failure, fault = _attempt(lambda: compare_descriptions(own, first, processes.rank))
    blocks = _agree(processes, request and blocks_of(request.tensors), failure, fault)
    writers = writers_of(blocks, first)
    return request, tensor_parts(request.tensors, shards, first, processes.rank, writers)


# The other processes must receive any error first, an interruption too.
_attempt = partial(attempt, errors=BaseException)
_ERRORS = {
    each.__name__: each
    for each in (CheckpointExistsError, UnsavableError, UnwritableCheckpointError)
}


def _connected(exchange: Callable[[], Any], failure: BaseException | None) -> Any:
    """Exchange values with the other processes; raise the failure, or that a process was lost."""
    try:
        return exchange()
    except RuntimeError as error:
        # Rank 0 removes the folder when it loses a process, so its absence does not count.
        own = None if isinstance(getattr(failure, "__cause__", 0), FileNotFoundError) else failure
        raise own or ProcessError(
            f"another process was lost while a checkpoint was written: {error}"
        ) from error


def _agree(processes: Processes, value: Any, failure: Any, fault: Any) -> list[Any]:
    """Return the values of all processes, or raise on each of them if one has failed."""
    outcomes = _connected(lambda: processes.gather([value, fault]), failure)
    raise_first(failure, [fault for _, fault in outcomes], _ERRORS)
    return [each for each, _ in outcomes]


def _write_part(
    target: Path, partial: Path, parts: Mapping[str, TensorShard], processes: Processes
) -> dict[str, Any]:
    """Write the file of this process; return its size and hash, and whether rank 0 sees it."""
    tensors = {name: part.tensor for name, part in parts.items()}
    offsets = {name: part.offsets for name, part in parts.items()}
    name = tensor_file(processes.rank + 1, processes.size)

    def content(out: Write) -> None:
        write_tensors(out, tensors, offsets=offsets)

    remote, sees = OPEN.get(target.parent), True
    try:
        record = write_file(partial / name, content)
    except FileNotFoundError as error:
        if remote is None:
            raise UnwritableCheckpointError(
                f"{partial} was created by rank 0, but rank {processes.rank} cannot find it: "
                "checkpoints must be written to a URL, or a file system that all processes share."
            ) from error
        record, sees = remote.put_part(partial.name, name, content), False
    return {"sees": sees, **attrs.asdict(record)}


def _commit(request: Request, partial: Path, records: list[dict[str, Any]]) -> None:
    named = {tensor_file(n, len(records)): one for n, one in enumerate(records, start=1)}
    elsewhere = [name for name, value in named.items() if not value.pop("sees")]
    files = {name: FileRecord(**value) for name, value in named.items()}
    if elsewhere:
        parts = {name: files[name] for name in elsewhere}
        OPEN[request.target.parent].expect_parts(request.target.name, partial, parts)
    for name, record in files.items():
        if (partial / name).stat().st_size != record.size:
            raise UnwritableCheckpointError(
                f"{partial / name} has another size than its process wrote: the processes must "
                "share the file system."
            )
    finish_folder(request, partial, files)
    clean(request.target)


# --- the division among processes


Tensors = Mapping[str, Tensor | TensorShard]
Description = dict[str, Any]
"""JSON: the target; the dtype, shape, division and mesh of each tensor; and the meshes."""
Blocks = dict[str, list[Sequence[int]]]
"""The offsets and sizes of the `TensorShard`s of a process, by name."""
Writers = Mapping[tuple[str, Region], int]
"""The process that writes each block of a `TensorShard`."""

_BLOCKS = "blocks"


def describe_tensors(target: str, tensors: Tensors) -> Description:
    """Describe the tensors of a process, which writes them to a target."""
    meshes: dict[Any, int] = {}  # each is described once: it lists all of its processes
    entries: dict[str, list[Any]] = {}
    for name, tensor in tensors.items():
        own: Any = tensor.tensor if isinstance(tensor, TensorShard) else tensor
        division, mesh = None if own is tensor else _BLOCKS, None
        if is_dtensor(own):
            division, mesh = str(own.placements), meshes.setdefault(own.device_mesh, len(meshes))
        entries[name] = [DTYPE_NAMES[own.dtype], list(tensor.shape), division, mesh]
    ranks = [[list(mesh.shape), mesh.mesh.flatten().tolist()] for mesh in meshes]
    return {"target": target, "tensors": entries, "meshes": ranks}


def compare_descriptions(own: Description, first: Description, rank: int) -> None:
    """Compare the description of a process with rank 0's.

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
    """Return the blocks of a process, except blocks that follow from a mesh."""
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


def tensor_parts(
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
