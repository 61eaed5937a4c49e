"""Read checkpoints, which are folders of files, and find, copy and delete them."""

import os
import secrets
from pathlib import Path

import attrs
import torch
from torch import Tensor

from composable.checkpoint._atomic import remove_files
from composable.checkpoint._reader import candidates, reading
from composable.checkpoint._safetensors import write_tensors
from composable.checkpoint._writer import Request, write_whole
from composable.checkpoint.errors import (
    CheckpointError,
    MissingCheckpointError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import Manifest, as_target, is_part, is_plain_name
from composable.checkpoint.shards import Region
from composable.core._json import JSON
from composable.functional._checks import as_path, check_device, check_flag

__all__ = [
    "Broken",
    "Contents",
    "Found",
    "consolidate",
    "delete",
    "find",
    "holds_files_of_one",
    "put_aside",
    "read",
    "verify",
]


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
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        whole = {name: Region.whole(one.shape) for name, one in files.tensors.items()}
        tensors = files.read(whole, verify=files.files)
    if torch.device(device).type != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Contents(tensors, data, opened.manifest, path)


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read and verify all of a checkpoint, and return only its manifest.

    Raises:
        CheckpointError: See `read`.
    """
    return _manifest(as_target("folder", folder), thorough=True)


def _manifest(path: Path, *, thorough: bool) -> Manifest:
    with reading(path) as opened:
        if thorough:
            _, files = opened.contents()
            files.read({}, verify=files.files)
    return opened.manifest


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
            whole.append(Found(path, _manifest(path, thorough=thorough)))
        except MissingCheckpointError:
            continue  # deleted after it was listed
        except CheckpointError as error:
            if holds_files_of_one(path):
                broken.append(Broken(path, error))
    whole.sort(key=lambda found: (found.manifest.batch, found.manifest.created), reverse=True)
    return whole, broken


def holds_files_of_one(path: Path) -> bool:
    """Return whether a folder has a file of a checkpoint, and so is one, if a broken one."""
    try:
        return any(map(is_part, os.listdir(path)))
    except OSError:
        return False


def consolidate(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Copy a checkpoint into an ordinary one, with one file of tensors.

    All of the checkpoint is verified first. Then one tensor at a time is kept in memory.

    Args:
        folder: The checkpoint, sharded or not.
        out: The checkpoint to write, possibly the same. Its parent folder must exist.
        overwrite: Replace an existing checkpoint.

    Returns:
        The absolute path of the new checkpoint.

    Raises:
        CheckpointError: See `read` and `write`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import consolidate, read, write
        >>> runs = pathlib.Path(tempfile.mkdtemp())
        >>> path = write(runs / "ba10", {"w": torch.ones(2)}, None)
        >>> read(consolidate(path, runs / "one")).tensors
        {'w': tensor([1., 1.])}
    """
    source, target = as_target("folder", folder), as_target("out", out)
    check_flag("overwrite", overwrite)
    with reading(source) as opened:
        state, files = bytes(opened.state()), opened.tensors()
        files.read({}, verify=files.files)
        request = Request(target, {}, state, overwrite, dict(opened.manifest.info))
        return write_whole(request, lambda out: write_tensors(out, files.tensors, files.fetch))


def delete(checkpoint: Path, run: str) -> bool:
    """Delete a checkpoint of a run, atomically: a reader never finds part of it.

    Nothing is deleted if the path is a link, if another run wrote the checkpoint, if its manifest
    cannot be read, or if its folder contains other files.

    Args:
        checkpoint: The checkpoint.
        run: The id of the run.

    Returns:
        Whether the checkpoint was deleted.

    Raises:
        UnwritableCheckpointError: The checkpoint cannot be deleted.
    """
    if not _is_of(checkpoint, run):
        return False
    # Readers ignore this name: it marks the folder of an unfinished writer.
    aside = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(8)}.partial")
    try:
        os.rename(checkpoint, aside)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{checkpoint} cannot be deleted: {error.strerror or error}."
        ) from error
    remove_files(aside)
    return True


def put_aside(checkpoint: Path) -> Path | None:
    """Rename a damaged checkpoint, so that another can be written: ep1-ba5.damaged-1.

    Nothing is renamed if there is no folder, or if the folder has files but none of a checkpoint.
    `find` ignores the new name.

    Returns:
        The new path, or None if nothing was renamed.

    Raises:
        UnwritableCheckpointError: The checkpoint cannot be renamed.
    """
    if checkpoint.is_symlink() or not checkpoint.is_dir():
        return None
    if os.listdir(checkpoint) and not holds_files_of_one(checkpoint):
        return None
    number = 1
    while os.path.lexists(aside := checkpoint.with_name(f"{checkpoint.name}.damaged-{number}")):
        number += 1
    try:
        os.rename(checkpoint, aside)
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{checkpoint} is damaged, and cannot be renamed: {error.strerror or error}."
        ) from error
    return aside


def _is_of(checkpoint: Path, run: str) -> bool:
    """Return whether a folder is a checkpoint of a run, and nothing else."""
    if not is_plain_name(checkpoint.name) or checkpoint.is_symlink():
        return False
    try:
        names = os.listdir(checkpoint)
        written_by = _manifest(checkpoint, thorough=False).info.get("run")
    except (OSError, CheckpointError):
        return False
    return all(map(is_part, names)) and written_by == run
