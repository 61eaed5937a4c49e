"""Read checkpoints, which are folders of files, and find, copy and delete them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable._support.checks import as_path, check_flag
from composable._support.strict_json import JSON
from composable.checkpoint.atomic import discard
from composable.checkpoint.errors import (
    CheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import Manifest, as_target, is_part, is_plain_name
from composable.checkpoint.reader import candidates, reading
from composable.checkpoint.request import Request, dump_state
from composable.checkpoint.shards import Region, is_dtensor, like_dtensor, region_of
from composable.checkpoint.writer import write_whole
from composable.distributed.processes import Processes


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


def read(folder: str | os.PathLike[str]) -> Contents:
    """Read a checkpoint to the CPU; all of it is verified before anything is returned.

    Args:
        folder: The checkpoint to read.

    Raises:
        MissingCheckpointError: There is no checkpoint at this path.
        DamagedCheckpointError: A file is missing, or was changed since it was written.
        VersionError: The checkpoint has a schema that this version cannot read.
        UnreadableCheckpointError: A file cannot be read.
    """
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        whole = {name: Region.whole(tensor.shape) for name, tensor in files.tensors.items()}
        tensors = files.read(whole, verify=files.files)
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


def read_shards(
    folder: str | os.PathLike[str], like: Mapping[str, Any], *, verify: bool = True
) -> Contents:
    """Read the part of each tensor that this process needs, on any number of processes.

    The checkpoint may have been written by any number of processes. This function does not
    communicate: each process reads its parts.

    The manifest and the state are always verified. A file of tensors is read if it has
    a part that is needed. Its hash is compared with the manifest, for which all of its bytes are
    read, but only the parts that are needed are kept in memory.

    Args:
        folder: The checkpoint to read.
        like: What to read of each tensor, by name, such as the tensors that `pack` returns for the
            state to restore. For a `DTensor`, the result is a `DTensor` with the same mesh,
            placements and device. For a `Region`, the result is a tensor of its elements on the
            CPU. For any other value, and a name that the mapping does not have, it is the whole
            tensor.
        verify: Compare the hashes of files of tensors. Otherwise only the bytes of the parts are
            read, and of the files of tensors only the sizes and headers are verified.

    Returns:
        The contents. `unpack` accepts them.

    Raises:
        MismatchError: A value of `like` has another shape than the tensor, or cannot be imitated.
        CheckpointError: See `read`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import Region, read_shards, write
        >>> path = write(pathlib.Path(tempfile.mkdtemp()) / "it", {"w": torch.arange(6)}, None)
        >>> read_shards(path, {"w": Region([2], [3])}).tensors
        {'w': tensor([2, 3, 4])}
    """
    if not isinstance(like, Mapping):
        raise TypeError(f"like={like!r} must be a mapping of names to tensors.")
    check_flag("verify", verify)
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        regions = {
            name: _region(name, tuple(stored.shape), like.get(name))
            for name, stored in files.tensors.items()
        }
        if verify:
            tensors = files.read(regions)
        else:
            tensors = {name: files.fetch(name, region) for name, region in regions.items()}
    for name, model in like.items():
        if name in tensors and is_dtensor(model):
            tensors[name] = like_dtensor(tensors[name], model)
    return Contents(tensors, data, opened.manifest, path)


def read_outline(folder: str | os.PathLike[str], processes: Processes) -> Contents:
    """Read a checkpoint without the values of its tensors, and verify a share of their files.

    This function does not communicate. Each process verifies the manifest, the state, and
    the size and header of every file. It compares the hashes of its share of the files of
    tensors: if no process raises, all of the checkpoint is verified.

    Args:
        folder: The checkpoint to read.
        processes: The processes that call this function, with the same folder.

    Returns:
        The contents. The tensors are on the meta device: they have a shape and a dtype only.

    Raises:
        CheckpointError: See `read`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import write
        >>> from composable.checkpoint.files import read_outline
        >>> from composable.distributed import Processes
        >>> path = write(pathlib.Path(tempfile.mkdtemp()) / "it", {"w": torch.arange(6)}, None)
        >>> read_outline(path, Processes()).tensors["w"].shape
        torch.Size([6])
    """
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        files.read({}, verify=opened.manifest.share(processes))
    return Contents(files.tensors, data, opened.manifest, path)


def _region(name: str, shape: tuple[int, ...], model: Any) -> Region:
    if isinstance(model, Region):
        if not model.fits(shape):
            raise MismatchError(
                f"tensor {name!r} has shape {list(shape)} in the checkpoint, which has no {model}."
            )
        return model
    if not is_dtensor(model):
        return Region.whole(shape)
    if tuple(model.shape) != shape:
        raise MismatchError(
            f"tensor {name!r} has shape {list(shape)} in the checkpoint, but "
            f"{list(model.shape)} in like."
        )
    try:
        region = region_of(model)
    except ValueError as error:
        raise MismatchError(f"tensor {name!r} of like {error}.") from None
    return Region(shape, (0,) * len(shape)) if region is None else region


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
        data, files = opened.contents()
        files.read({}, verify=files.files)
        info = dict(opened.manifest.info)
        return write_whole(
            Request(target, files.tensors, dump_state(data), overwrite, info), files.fetch
        )


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
    try:
        discard(checkpoint)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{checkpoint} cannot be deleted: {error.strerror or error}."
        ) from error
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
    return rename_damaged(checkpoint)


def rename_damaged(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint to a free name: ep1-ba5.damaged-1.

    Raises:
        UnwritableCheckpointError: It cannot be renamed.
    """
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
