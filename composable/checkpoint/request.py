"""What to write to a checkpoint, checked, and the files besides the tensors."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable._support.checks import check_flag, check_tensors
from composable._support.strict_json import JSON, dump
from composable.checkpoint.atomic import commit, write_file
from composable.checkpoint.errors import UnsavableError
from composable.checkpoint.manifest import (
    MANIFEST,
    MAX_STATE,
    STATE,
    FileRecord,
    as_target,
    dump_manifest,
)
from composable.checkpoint.safetensors import DTYPES
from composable.checkpoint.shards import TensorShard
from composable.core.stateful import is_count


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


def finish_folder(request: Request, partial: Path, records: Mapping[str, FileRecord]) -> None:
    """Write the files besides the tensors, the manifest last, and rename the folder.

    Args:
        request: What to write.
        partial: The temporary folder.
        records: The sizes and hashes of the files of tensors.
    """
    state = write_file(partial / STATE, lambda out: out(request.state))
    manifest = dump_manifest({**records, STATE: state}, request.info)
    write_file(partial / MANIFEST, lambda out: out(manifest))
    commit(partial, request.target)
