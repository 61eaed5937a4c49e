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

from composable.checkpoint._json import JSON
from composable.checkpoint._reader import candidates, check_sizes, holds_files_of_one, reading
from composable.checkpoint._regions import check_all
from composable.checkpoint._together import write_together
from composable.checkpoint._writer import Request, as_request, write_alone
from composable.checkpoint.errors import CheckpointError, MissingCheckpointError
from composable.checkpoint.manifest import Manifest, as_target
from composable.checkpoint.shards import TensorShard
from composable.distributed.processes import Processes
from composable.functional._checks import as_path, check_device, check_flag

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
        return write_together(check, processes)
    return write_alone(check())


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
    path = as_target("folder", folder)
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
    with reading(as_target("folder", folder)) as inputs:
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
