"""Checkpoints as folders of three files, written atomically.

The files are written to a temporary folder next to the target, synced to disk, and the folder is
renamed in one operation. The manifest holds the size and the hash of each file, and its own hash,
so files that were changed, truncated or exchanged are detected.
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
    commit,
    restore,
    staging_folder,
    sync_folder,
    write_file,
)
from composable.checkpoint._json import JSON
from composable.checkpoint._reader import (
    MAX_STATE,
    candidates,
    check_sizes,
    holds_files_of_one,
    reading,
)
from composable.checkpoint._regions import check_all
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
from composable.functional._checks import as_path, check_device, check_flag, check_tensors

__all__ = ["Broken", "Contents", "Found", "find", "read", "verify", "write"]


@attrs.frozen(eq=False)
class Contents:
    """The contents of a checkpoint, read and verified."""

    tensors: dict[str, Tensor]
    data: JSON
    manifest: Manifest
    path: Path


@attrs.frozen
class Found:
    """A valid checkpoint in a folder."""

    path: Path
    manifest: Manifest


@attrs.frozen
class Broken:
    """A broken checkpoint in a folder, and the reason."""

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
    """Write a checkpoint atomically: a reader sees either all of it or none.

    Args:
        folder: The checkpoint to write. Its parent folder must exist.
        tensors: The tensors by name.
        data: The rest of the state, as JSON: see `pack`.
        overwrite: Replace an existing checkpoint. It is deleted once the new one is on disk.
        info: Entries for the manifest, as JSON. `find` sorts by `batch`.

    Returns:
        The absolute path of the folder.

    Raises:
        CheckpointExistsError: `folder` exists, and is not a checkpoint or `overwrite` is False.
        UnsavableError: `data` or `info` is not JSON, or the format does not support a dtype.
        UnwritableCheckpointError: The files cannot be written. An existing checkpoint is kept.
    """
    target = _as_path(folder)
    check_tensors("tensors", tensors)
    check_flag("overwrite", overwrite)
    if not (info is None or isinstance(info, Mapping)):
        raise TypeError(f"info={info!r} must be a mapping, or None.")
    state = _dump_state(data)
    entries = check_info({} if info is None else dict(info))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise UnsavableError(
                f"tensor {name!r} has dtype {tensor.dtype}, which the format does not support: use "
                "pack()."
            )
    try:
        restore(target)
        check_place(target, overwrite)
        with staging_folder(target) as partial:
            records = {
                TENSORS: write_file(partial / TENSORS, lambda out: write_tensors(out, tensors)),
                STATE: write_file(partial / STATE, lambda out: out(state)),
            }
            manifest = dump_manifest(records, entries)
            write_file(partial / MANIFEST, lambda out: out(manifest))
            sync_folder(partial)
            commit(partial, target)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnwritableCheckpointError(
            f"{target} cannot be written: {error.strerror or error}{advice(error)} An earlier "
            "checkpoint at this path is unchanged."
        ) from error
    clean(target)
    return target


def read(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Contents:
    """Read a checkpoint; all of it is verified before anything is returned.

    Args:
        folder: The checkpoint to read.
        device: The device of the tensors.

    Raises:
        MissingCheckpointError: There is no checkpoint at this path.
        DamagedCheckpointError: A file is missing, or differs from the one that was written.
        VersionError: The checkpoint has a schema that this version cannot read.
        UnreadableCheckpointError: A file cannot be read.
    """
    check_device(device)
    device = torch.device(device)
    path = _as_path(folder)
    with reading(path) as inputs:
        manifest, tensors, data = check_all(inputs, keep=True)
    if device.type != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Contents(tensors, data, manifest, path)


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read and verify all of a checkpoint, and return only its manifest.

    Raises:
        CheckpointError: See `read`.
    """
    with reading(_as_path(folder)) as inputs:
        return check_all(inputs, keep=False)[0]


def find(
    folder: str | os.PathLike[str], *, thorough: bool = False
) -> tuple[list[Found], list[Broken]]:
    """Find the checkpoints in a folder, the most recent first.

    They are sorted by the number of batches in their manifest, then by the time of writing. The
    names of the checkpoints and the modification times of their files are not used. Links are not
    followed.

    Args:
        folder: The folder to list, not recursively.
        thorough: Verify every byte, like `verify`. Otherwise only the manifest and the sizes.

    Returns:
        The valid checkpoints, and the broken ones with the reason.

    Raises:
        MissingCheckpointError: The folder does not exist.
        UnreadableCheckpointError: The folder cannot be listed.
    """
    root = as_path("folder", folder).absolute()
    check_flag("thorough", thorough)
    whole: list[Found] = []
    broken: list[Broken] = []
    for path in candidates(root):
        try:
            with reading(path) as inputs:
                manifest = check_all(inputs, keep=False)[0] if thorough else check_sizes(inputs)
            whole.append(Found(path, manifest))
        except MissingCheckpointError:
            continue  # deleted after it was listed
        except CheckpointError as error:
            if holds_files_of_one(path):
                broken.append(Broken(path, error))
    whole.sort(key=lambda found: (found.manifest.batch, found.manifest.created), reverse=True)
    return whole, broken


def _as_path(folder: str | os.PathLike[str]) -> Path:
    path = as_path("folder", folder).absolute()
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
            f"the state has {len(raw)} bytes besides its tensors, more than the maximum of "
            f"{MAX_STATE}: store long lists of numbers as tensors."
        )
    return raw
