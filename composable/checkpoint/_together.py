"""Write a checkpoint from several processes: each writes a file, and one of them commits."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable.checkpoint._atomic import clean, file_size, write_file
from composable.checkpoint._safetensors import DTYPES, dtype_name, write_tensors
from composable.checkpoint._writer import Request, finish, staging, writable
from composable.checkpoint.errors import (
    CheckpointExistsError,
    UnsavableError,
    UnwritableCheckpointError,
)
from composable.checkpoint.layout import Region, Stored, cover, dump_layout
from composable.checkpoint.manifest import LAYOUT, FileRecord, tensor_file
from composable.checkpoint.shards import TensorShard, as_shard
from composable.distributed.processes import ProcessError, Processes

__all__ = ["write_together"]

_Plan = dict[str, list[Any]]
"""For each tensor of a process: dtype, shape, and the offsets and sizes of its part, or None."""


def write_together(check: Callable[[], Request], processes: Processes) -> Path:
    """Write a checkpoint with a file of tensors for each process.

    Args:
        check: Checks the arguments of this process.
        processes: The processes that call this function.
    """

    def prepare() -> tuple[Request, dict[str, TensorShard | None]]:
        request = check()
        return request, {name: as_shard(name, t) for name, t in request.tensors.items()}

    failure, prepared = _attempt(prepare)
    plan = None if prepared is None else [str(prepared[0].target), _plan_of(*prepared)]
    plans = _agree(processes, plan, failure)
    request: Request = prepared[0]
    parts: dict[str, TensorShard | None] = prepared[1]
    layout = _divide(request, plans)

    def together(function: Callable[[], Any]) -> list[Any]:
        failure, value = _attempt(lambda: _converted(request.target, function))
        return _agree(processes, value, failure)

    def commit() -> None:
        _commit(request, partial, layout, records)
        stack.close()

    with writable(request.target), ExitStack() as stack:
        main = processes.is_main
        # Rank 0 alone locks the folder, renames it, or deletes it after an error.
        paths = together(lambda: str(stack.enter_context(staging(request))) if main else None)
        partial = Path(paths[0])
        records = together(lambda: _write_part(partial, layout, parts, processes))
        together(lambda: commit() if main else None)
    return request.target


def _attempt(function: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    """Call a function, and return its error, which the other processes must receive first."""
    try:
        return None, function()
    except BaseException as error:
        return error, None


def _converted(target: Path, function: Callable[[], Any]) -> Any:
    with writable(target):
        return function()


_ERRORS = {
    each.__name__: each
    for each in (CheckpointExistsError, UnsavableError, UnwritableCheckpointError)
}


def _agree(processes: Processes, value: Any, failure: BaseException | None) -> list[Any]:
    """Return the values of all processes, or raise on each of them if one has failed."""
    fault = None if failure is None else [type(failure).__name__, str(failure)]
    try:
        outcomes = processes.gather([value, fault])
    except RuntimeError as error:
        raise failure or ProcessError(
            f"another process was lost while a checkpoint was written: {error}"
        ) from error
    if failure is not None:
        raise failure
    for rank, (_, other) in enumerate(outcomes):
        if other is not None:
            kind, message = other
            raise _ERRORS.get(kind, ProcessError)(f"rank {rank} failed: {message}")
    return [each for each, _ in outcomes]


# ---------------------------------------------------------------------------------------------
# What each process writes


def _plan_of(request: Request, parts: Mapping[str, TensorShard | None]) -> _Plan:
    plan: _Plan = {}
    for name, part in parts.items():
        if part is None:
            whole: Any = request.tensors[name]
            plan[name] = [dtype_name(whole.dtype), list(whole.shape), None, None]
        else:
            offsets, sizes = list(part.offsets), list(part.region.sizes)
            plan[name] = [dtype_name(part.tensor.dtype), list(part.shape), offsets, sizes]
    return plan


def _divide(request: Request, plans: list[list[Any]]) -> dict[str, Stored]:
    """Assign each part to one of the processes that have it; the same result on all of them."""
    first: _Plan = plans[0][1]
    holders: dict[tuple[str, Region], list[int]] = {}
    for rank, (target, plan) in enumerate(plans):
        if target != plans[0][0]:
            raise ProcessError(f"rank 0 writes to {plans[0][0]}, but rank {rank} to {target}.")
        _compare(plan, first, rank)
        for name, (_, shape, offsets, sizes) in plan.items():
            if not math.prod(shape):
                holders.setdefault((name, Region.whole(shape)), []).append(rank)
            elif offsets is not None and math.prod(sizes):
                holders.setdefault((name, Region(offsets, sizes)), []).append(rank)

    def size(name: str, region: Region) -> int:
        itemsize: int = DTYPES[first[name][0]].itemsize
        return region.count * itemsize

    loads = [0] * len(plans)
    slices: dict[str, dict[int, Region]] = {name: {} for name in first}
    for key in sorted(holders, key=lambda key: (-size(*key), key[0], key[1].offsets)):
        rank = min(holders[key], key=loads.__getitem__)
        loads[rank] += size(*key)
        slices[key[0]][rank + 1] = key[1]
    for name, regions in slices.items():
        if not cover(first[name][1], list(regions.values())):
            raise UnsavableError(
                f"tensor {name!r} of shape {first[name][1]} is not divided into its parts: they "
                f"overlap or leave a gap. By rank: {_listed(regions)}."
            )
    return {
        name: Stored(DTYPES[first[name][0]], tuple(first[name][1]), regions)
        for name, regions in slices.items()
    }


def _compare(plan: _Plan, first: _Plan, rank: int) -> None:
    for name in {**first, **plan}:
        if name not in plan and _is_whole(first[name]):
            continue  # rank 0 writes it: part of a logger, which only rank 0 has
        if name not in plan or name not in first:
            has, lacks = (0, rank) if name in first else (rank, 0)
            raise UnsavableError(f"rank {has} has a tensor {name!r}, but rank {lacks} does not.")
        if plan[name][:2] != first[name][:2]:
            a, b = (f"{dtype} of shape {shape}" for dtype, shape, *_ in (first[name], plan[name]))
            raise UnsavableError(f"tensor {name!r} is {a} on rank 0, but {b} on rank {rank}.")


def _is_whole(entry: list[Any]) -> bool:
    _, shape, offsets, sizes = entry
    return offsets is not None and not any(offsets) and sizes == shape


def _listed(regions: Mapping[int, Region], most: int = 4) -> str:
    each = [f"{file - 1}: {r.sizes} from {r.offsets}" for file, r in sorted(regions.items())]
    return "; ".join(each[:most]) + ("; ..." if len(each) > most else "")


def _write_part(
    partial: Path,
    layout: Mapping[str, Stored],
    parts: Mapping[str, TensorShard | None],
    processes: Processes,
) -> dict[str, Any]:
    """Write the file of this process, and return its size and hash."""
    number = processes.rank + 1
    own: dict[str, Tensor] = {}
    for name, stored in layout.items():
        part = parts.get(name)
        if number in stored.slices and part is not None:
            empty = not math.prod(stored.shape)  # its part may have another empty shape
            own[name] = part.tensor.new_empty(stored.shape) if empty else part.tensor
    try:
        record = write_file(
            partial / tensor_file(number, processes.size), lambda out: write_tensors(out, own)
        )
    except FileNotFoundError as error:
        raise UnwritableCheckpointError(
            f"{partial} was created by rank 0, but rank {processes.rank} cannot find it: "
            "checkpoints must be written to a file system that all processes share."
        ) from error
    return attrs.asdict(record)


def _commit(
    request: Request, partial: Path, layout: Mapping[str, Stored], records: list[dict[str, Any]]
) -> None:
    files = {
        tensor_file(number, len(records)): FileRecord(**record)
        for number, record in enumerate(records, start=1)
    }
    for name, record in files.items():
        if file_size(partial / name) != record.size:
            raise UnwritableCheckpointError(
                f"{partial / name} has another size than its process wrote: the processes must "
                "share the file system."
            )
    finish(request, partial, files, {LAYOUT: dump_layout(layout)})
    clean(request.target)
