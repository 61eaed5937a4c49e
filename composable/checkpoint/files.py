"""A checkpoint as a folder of three files, which is there whole or not at all.

The files are written into a folder beside the target, brought to the disk, and then renamed as one.
The manifest has the size and the hash of each, and of itself, so nothing that was changed, cut off
or exchanged is taken for what was written.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from torch import Tensor

from composable.checkpoint import _json
from composable.checkpoint._atomic import (
    advice,
    check_place,
    clean,
    put_in_place,
    restore,
    staged,
    sync_folder,
    write_file,
)
from composable.checkpoint._json import JSON
from composable.checkpoint._reader import MAX_STATE, candidates, check_all, check_sizes, reading
from composable.checkpoint._safetensors import DTYPES, write_tensors
from composable.checkpoint.errors import (
    CheckpointError,
    MissingCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import (
    MANIFEST,
    STATE,
    TENSORS,
    Manifest,
    check_info,
    dump_manifest,
)

__all__ = ["Broken", "Contents", "Found", "find", "read", "verify", "write"]


@attrs.frozen(eq=False)
class Contents:
    """All of a checkpoint, read and checked."""

    tensors: dict[str, Tensor]
    data: JSON
    manifest: Manifest
    path: Path


@attrs.frozen
class Found:
    """A whole checkpoint in a folder."""

    path: Path
    manifest: Manifest


@attrs.frozen
class Broken:
    """A folder that should be a checkpoint and isn't one."""

    path: Path
    error: CheckpointError


def write(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    data: JSON,
    *,
    overwrite: bool = False,
    info: Mapping[str, JSON] | None = None,
) -> Path:
    """Write a checkpoint: at every moment, a reader finds all of it or none.

    Args:
        folder: The checkpoint. The folder above it must be there.
        tensors: By name.
        data: What JSON can say: see `pack`.
        overwrite: Replace a checkpoint that is there. It stays until the new one is on the disk.
        info: What the manifest shall say of it, as JSON. `batch` is what `find` orders by.

    Returns:
        The folder.

    Raises:
        CheckpointExistsError: Something is there, and it is no checkpoint or `overwrite` is False.
        UnsavableError: `data` or `info` is not JSON, or a dtype is not of the format.
        UnwritableCheckpointError: The system refuses. What was there still is.
    """
    target = _as_path(folder)
    state = _dump_state(data)
    entries = check_info({} if info is None else dict(info))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise UnsavableError(f"tensor {name!r} has dtype {tensor.dtype}: see pack().")
    try:
        restore(target)
        check_place(target, overwrite)
        with staged(target) as partial:
            records = {
                TENSORS: write_file(partial / TENSORS, lambda out: write_tensors(out, tensors)),
                STATE: write_file(partial / STATE, lambda out: out(state)),
            }
            manifest = dump_manifest(records, entries)
            write_file(partial / MANIFEST, lambda out: out(manifest))
            sync_folder(partial)
            put_in_place(partial, target)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnwritableCheckpointError(
            f"{target} can't be written: {error.strerror or error}{advice(error)} What was there "
            "before is as it was."
        ) from error
    clean(target)
    return target


def read(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Contents:
    """Read a checkpoint: all of it is checked before any of it is handed back.

    Args:
        folder: The checkpoint.
        device: Where the tensors shall be.

    Raises:
        MissingCheckpointError: There is none.
        DamagedCheckpointError: A file is missing, or isn't what was written.
        VersionError: It has a layout that this version can't read.
        UnreadableCheckpointError: The system refuses.
    """
    device = torch.device(device)
    path = _as_path(folder)
    with reading(path) as files:
        manifest, tensors, data = check_all(files, keep=True)
    if device.type != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Contents(tensors, data, manifest, path)


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check all of a checkpoint, and keep only its manifest.

    Raises:
        CheckpointError: As `read` does.
    """
    with reading(_as_path(folder)) as files:
        return check_all(files, keep=False)[0]


def find(
    folder: str | os.PathLike[str], *, thorough: bool = False
) -> tuple[list[Found], list[Broken]]:
    """Find the checkpoints in a folder, the newest first.

    The order is that of the batches that they say were done, then that of their writing. The name
    of a checkpoint and the times of its files say nothing. Links are not followed.

    Args:
        folder: Where to look; not in the folders below its checkpoints.
        thorough: Check every byte, as `verify` does. Otherwise the manifest and the sizes.

    Returns:
        The whole ones, and the broken ones with what is wrong.

    Raises:
        MissingCheckpointError: There is no such folder.
        UnreadableCheckpointError: The system refuses to list it.
    """
    root = Path(folder).absolute()
    whole: list[Found] = []
    broken: list[Broken] = []
    for path in candidates(root):
        try:
            with reading(path) as files:
                manifest = check_all(files, keep=False)[0] if thorough else check_sizes(files)
            whole.append(Found(path, manifest))
        except MissingCheckpointError:
            continue  # deleted since it was listed
        except CheckpointError as error:
            broken.append(Broken(path, error))
    whole.sort(key=lambda found: (found.manifest.batch, found.manifest.created), reverse=True)
    return whole, broken


def _as_path(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder).absolute()
    if not path.name or path.name == "..":
        raise ValueError(f"folder={str(folder)!r} must end with the name of the checkpoint.")
    return path


def _dump_state(data: JSON) -> bytes:
    try:
        raw = _json.dump(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsavableError(f"data is not JSON: {error}. Use pack().") from None
    if len(raw) > MAX_STATE:
        raise UnsavableError(
            f"the state has {len(raw)} bytes beside its tensors, and {MAX_STATE} is the most: "
            "keep long lists of numbers as tensors."
        )
    return raw
