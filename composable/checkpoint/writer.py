"""Write a checkpoint as a folder of files, atomically.

The files are written to a temporary folder next to the target, synced to disk, and the folder is
renamed in one operation. The manifest holds the size and the hash of each file, and its own hash,
so files that were changed, truncated or exchanged are detected.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable._support.checks import check_flag, check_tensors
from composable._support.strict_json import JSON, dump
from composable.checkpoint.atomic import clean, commit, staging, writable, write_file
from composable.checkpoint.errors import UnsavableError
from composable.checkpoint.manifest import (
    MANIFEST,
    MAX_STATE,
    STATE,
    TENSORS,
    FileRecord,
    as_target,
    dump_manifest,
)
from composable.checkpoint.safetensors import DTYPES, write_tensors
from composable.checkpoint.shards import TensorShard, as_whole
from composable.core.stateful import is_count
from composable.distributed.processes import Processes

__all__ = ["Request", "as_request", "dump_state", "finish_folder", "write", "write_whole"]


def write(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Tensor | TensorShard],
    data: JSON,
    *,
    overwrite: bool = False,
    info: Mapping[str, JSON] | None = None,
    processes: Processes | None = None,
) -> Path:
    """Write a checkpoint atomically: a reader sees either all of it or none.

    With several processes, all of them call this function, and each writes a file of its own. The
    processes must share the file system of the folder. If one fails, all raise, and the folder is
    not written.

    Args:
        folder: The checkpoint to write. Its parent folder must exist.
        tensors: The tensors by name; with several processes, those of rank 0 on each, but for whole
            tensors that only rank 0 has. A `DTensor`
            and a `TensorShard` are the part of a tensor that this process has. Any other tensor is
            whole, with equal values on each process, and is written by one of them.
        data: The rest of the state, as JSON: see `pack`.
        overwrite: Replace an existing checkpoint. It is deleted once the new one is on disk.
        info: Entries for the manifest, as JSON. `find` sorts by `batch`.
        processes: The processes that write it together. `data`, `overwrite` and `info` are those of
            rank 0. Default: this process alone.

    Returns:
        The absolute path of the folder.

    Raises:
        CheckpointExistsError: `folder` exists, and is not a checkpoint or `overwrite` is False.
        UnsavableError: `data` or `info` is not JSON, the format does not support a dtype, or the
            parts of a tensor overlap or leave a gap.
        UnwritableCheckpointError: The files cannot be written. An existing checkpoint is kept.
        ProcessError: Another process ended, or raised an error of another type.
    """

    def check() -> Request:
        return as_request(folder, tensors, data, overwrite=overwrite, info=info)

    if processes is not None and not isinstance(processes, Processes):
        raise TypeError(f"processes={processes!r} must be Processes, or None.")
    if processes is not None and processes.several:
        from composable.checkpoint._together import write_together  # on use

        return write_together(check, processes)
    request = check()
    whole = {name: as_whole(name, tensor) for name, tensor in request.tensors.items()}
    return write_whole(attrs.evolve(request, tensors=whole))


@attrs.frozen(eq=False)
class Request:
    """What to write, checked."""

    target: Path
    tensors: Mapping[str, Tensor | TensorShard]
    state: bytes
    overwrite: bool
    info: dict[str, JSON]


def as_request(
    folder: str | os.PathLike[str], tensors: Any, data: JSON, *, overwrite: Any, info: Any
) -> Request:
    """Check the arguments of `write`."""
    target = as_target("folder", folder)
    own = tensors
    if isinstance(tensors, Mapping):
        own = {n: t.tensor if isinstance(t, TensorShard) else t for n, t in tensors.items()}
    check_tensors("tensors", own)
    check_flag("overwrite", overwrite)
    if not (info is None or isinstance(info, Mapping)):
        raise TypeError(f"info={info!r} must be a mapping, or None.")
    state = dump_state(data)
    entries = dict(info or {})
    if not is_count(batch := entries.get("batch", 0)):
        raise UnsavableError(f"info['batch']={batch!r} must be a non-negative integer.")
    for name, tensor in own.items():
        if tensor.dtype not in DTYPES.values():
            raise UnsavableError(
                f"tensor {name!r} has dtype {tensor.dtype}, which the format does not support: use "
                "pack()."
            )
    return Request(target, tensors, state, overwrite, entries)


def dump_state(data: JSON) -> bytes:
    """Encode the JSON of the state."""
    try:
        raw = dump(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsavableError(f"data is not JSON: {error}. Use pack().") from None
    if len(raw) > MAX_STATE:
        raise UnsavableError(
            f"the state has {len(raw)} bytes besides its tensors, more than the maximum of "
            f"{MAX_STATE}: store long lists of numbers as tensors."
        )
    return raw


def write_whole(request: Request, fetch: Callable[[str], Tensor] | None = None) -> Path:
    """Write a checkpoint with one file, of whole tensors.

    Args:
        request: What to write.
        fetch: Returns the values of a tensor by its name, if those of the request have none.
    """
    tensors: Any = request.tensors
    with writable(request.target):
        with staging(request.target, request.overwrite) as partial:
            file = write_file(partial / TENSORS, lambda out: write_tensors(out, tensors, fetch))
            finish_folder(request, partial, {TENSORS: file})
        clean(request.target)
    return request.target


def finish_folder(request: Request, partial: Path, records: Mapping[str, FileRecord]) -> None:
    """Write the files besides those of tensors, the manifest last, and rename the folder.

    Args:
        request: What to write.
        partial: The temporary folder.
        records: The sizes and hashes of the files of tensors.
    """
    state = write_file(partial / STATE, lambda out: out(request.state))
    manifest = dump_manifest({**records, STATE: state}, request.info)
    write_file(partial / MANIFEST, lambda out: out(manifest))
    commit(partial, request.target)
