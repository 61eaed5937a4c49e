"""Write a checkpoint from one process."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable.checkpoint import _json
from composable.checkpoint._atomic import (
    advice,
    check_place,
    clean,
    commit,
    restore,
    staging_folder,
    sync_folder,
    write_file,
)
from composable.checkpoint._json import JSON
from composable.checkpoint._safetensors import DTYPES, Write, write_tensors
from composable.checkpoint.errors import CheckpointError, UnsavableError, UnwritableCheckpointError
from composable.checkpoint.manifest import (
    MANIFEST,
    MAX_STATE,
    STATE,
    TENSORS,
    FileRecord,
    as_target,
    check_info,
    dump_manifest,
)
from composable.checkpoint.shards import TensorShard, as_whole
from composable.functional._checks import check_flag, check_tensors

__all__ = [
    "Request",
    "as_request",
    "dump_state",
    "finish",
    "staging",
    "writable",
    "write_alone",
    "write_whole",
]


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
    entries = check_info({} if info is None else dict(info))
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
        raw = _json.dump(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsavableError(f"data is not JSON: {error}. Use pack().") from None
    if len(raw) > MAX_STATE:
        raise UnsavableError(
            f"the state has {len(raw)} bytes besides its tensors, more than the maximum of "
            f"{MAX_STATE}: store long lists of numbers as tensors."
        )
    return raw


def write_alone(request: Request) -> Path:
    """Write a checkpoint with one file of tensors."""
    tensors = {name: as_whole(name, tensor) for name, tensor in request.tensors.items()}
    return write_whole(request, lambda out: write_tensors(out, tensors))


def write_whole(request: Request, content: Callable[[Write], object]) -> Path:
    """Write a checkpoint with one file of tensors of a given content."""
    with writable(request.target), staging(request) as partial:
        records = {TENSORS: write_file(partial / TENSORS, content)}
        finish(request, partial, records)
    clean(request.target)
    return request.target


@contextmanager
def writable(target: Path) -> Iterator[None]:
    """Convert errors of the operating system."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnwritableCheckpointError(
            f"{target} cannot be written: {error.strerror or error}{advice(error)} An earlier "
            "checkpoint at this path is unchanged."
        ) from error


@contextmanager
def staging(request: Request) -> Iterator[Path]:
    """Create the temporary folder of a checkpoint, if its place is free or may be overwritten."""
    restore(request.target)
    check_place(request.target, request.overwrite)
    with staging_folder(request.target) as partial:
        yield partial


def finish(request: Request, partial: Path, records: dict[str, FileRecord]) -> None:
    """Write the files besides those of tensors, the manifest last, and rename the folder.

    Args:
        request: What to write.
        partial: The temporary folder.
        records: The sizes and hashes of the files of tensors.
    """
    records = {**records, STATE: _write_bytes(partial / STATE, request.state)}
    _write_bytes(partial / MANIFEST, dump_manifest(records, request.info))
    sync_folder(partial)
    commit(partial, request.target)


def _write_bytes(path: Path, content: bytes) -> FileRecord:
    return write_file(path, lambda out: out(content))
