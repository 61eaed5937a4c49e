"""Write a checkpoint from several processes: each writes a file, and one of them commits."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from composable.checkpoint._atomic import clean, file_size, write_file
from composable.checkpoint._division import (
    blocks_of,
    compare,
    describe,
    parts_of,
    writers_of,
)
from composable.checkpoint._safetensors import write_tensors
from composable.checkpoint._writer import Request, finish, staging, writable
from composable.checkpoint.errors import (
    CheckpointExistsError,
    UnsavableError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import FileRecord, tensor_file
from composable.checkpoint.shards import TensorShard, as_shard
from composable.distributed.processes import ProcessError, Processes

__all__ = ["divide", "write_together"]


def write_together(check: Callable[[], Request], processes: Processes) -> Path:
    """Write a checkpoint with a file of tensors for each process.

    Args:
        check: Checks the arguments of this process.
        processes: The processes that call this function.
    """
    request, parts = divide(check, processes)

    def together(function: Callable[[], Any]) -> list[Any]:
        failure, value = _attempt(lambda: _converted(request.target, function))
        return _agree(processes, value, failure)

    def commit() -> None:
        _commit(request, partial, records)
        stack.close()

    with writable(request.target), ExitStack() as stack:
        main = processes.is_main
        # Rank 0 alone locks the folder, renames it, or deletes it after an error.
        paths = together(lambda: str(stack.enter_context(staging(request))) if main else None)
        partial = Path(paths[0])
        records = together(lambda: _write_part(partial, parts, processes))
        together(lambda: commit() if main else None)
    return request.target


def divide(
    check: Callable[[], Request], processes: Processes
) -> tuple[Request, dict[str, TensorShard]]:
    """Return what to write, and the parts of it that this process writes."""

    def prepare() -> tuple[Request, dict[str, TensorShard | None], dict[str, Any]]:
        request = check()
        shards = {name: as_shard(name, tensor) for name, tensor in request.tensors.items()}
        return request, shards, describe(str(request.target), request.tensors)

    failure, prepared = _attempt(prepare)
    request, shards, own = (None, {}, None) if prepared is None else prepared
    first = _connected(lambda: processes.broadcast(own), failure)
    if failure is None and first is not None:
        failure, _ = _attempt(lambda: compare(own, first, processes.rank))
    blocks = _agree(processes, request and blocks_of(request.tensors), failure)
    writers = writers_of(blocks, first)
    return request, parts_of(request.tensors, shards, first, processes.rank, writers)


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


def _connected(exchange: Callable[[], Any], failure: BaseException | None) -> Any:
    """Exchange values with the other processes, or raise the own failure, or that one was lost."""
    try:
        return exchange()
    except RuntimeError as error:
        raise failure or ProcessError(
            f"another process was lost while a checkpoint was written: {error}"
        ) from error


def _agree(processes: Processes, value: Any, failure: BaseException | None) -> list[Any]:
    """Return the values of all processes, or raise on each of them if one has failed."""
    fault = None if failure is None else [type(failure).__name__, str(failure)]
    outcomes = _connected(lambda: processes.gather([value, fault]), failure)
    if failure is not None:
        raise failure
    for rank, (_, other) in enumerate(outcomes):
        if other is not None:
            kind, message = other
            raise _ERRORS.get(kind, ProcessError)(f"rank {rank} failed: {message}")
    return [each for each, _ in outcomes]


def _write_part(
    partial: Path, parts: Mapping[str, TensorShard], processes: Processes
) -> dict[str, Any]:
    """Write the file of this process, and return its size and hash."""
    tensors = {name: part.tensor for name, part in parts.items()}
    offsets = {name: part.offsets for name, part in parts.items()}
    try:
        record = write_file(
            partial / tensor_file(processes.rank + 1, processes.size),
            lambda out: write_tensors(out, tensors, offsets=offsets),
        )
    except FileNotFoundError as error:
        raise UnwritableCheckpointError(
            f"{partial} was created by rank 0, but rank {processes.rank} cannot find it: "
            "checkpoints must be written to a file system that all processes share."
        ) from error
    return attrs.asdict(record)


def _commit(request: Request, partial: Path, records: list[dict[str, Any]]) -> None:
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
    finish(request, partial, files)
    clean(request.target)
