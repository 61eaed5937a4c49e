"""Create the folder of checkpoints, and delete checkpoints."""

import os
import secrets
from pathlib import Path

from composable.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpointError,
    UnwritableCheckpointError,
)

__all__ = ["delete", "is_plain_name", "make_folder", "put_aside"]


def make_folder(folder: Path) -> None:
    """Create a folder for checkpoints, and its parents.

    Raises:
        UnwritableCheckpointError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{folder} cannot be created: {error.strerror or error}. Use a writable folder."
        ) from error


def is_plain_name(name: object) -> bool:
    """Return whether a value is the name of a visible entry of a folder, and no path.

    Example:
        >>> from composable.checkpoint.folders import is_plain_name
        >>> [is_plain_name(name) for name in ("ep1-ba5", "../ep1-ba5", "/data", ".hidden", 3)]
        [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and not name.startswith(".")
        and not any(c in name for c in "/\\\0")
        and Path(name).name == name != ""
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
    from composable.checkpoint._atomic import remove_files  # on use: it is slow to import

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


def put_aside(checkpoint: Path) -> tuple[Path, DamagedCheckpointError] | None:
    """Rename a damaged checkpoint, so that another can be written: ep1-ba5.damaged-1.

    Nothing is renamed if there is no folder, if the checkpoint is intact, or if the folder has
    files but none of a checkpoint. `find` ignores the new name.

    Args:
        checkpoint: The checkpoint.

    Returns:
        The new path and the fault, or None if nothing was renamed.

    Raises:
        UnwritableCheckpointError: The checkpoint cannot be renamed.
    """
    from composable.checkpoint.files import verify  # on use: slow to import
    from composable.checkpoint.manifest import is_part

    if checkpoint.is_symlink() or not checkpoint.is_dir():
        return None
    try:
        verify(checkpoint)
        return None
    except DamagedCheckpointError as error:
        fault = error
    except CheckpointError:
        return None
    names = os.listdir(checkpoint)
    if names and not any(map(is_part, names)):
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
    return aside, fault


def _is_of(checkpoint: Path, run: str) -> bool:
    """Return whether a folder is a checkpoint of a run, and nothing else."""
    from composable.checkpoint._reader import check_sizes, reading  # on use: slow to import
    from composable.checkpoint.manifest import is_part

    if not is_plain_name(checkpoint.name) or checkpoint.is_symlink():
        return False
    try:
        names = os.listdir(checkpoint)
        with reading(checkpoint) as inputs:
            written_by = check_sizes(inputs).info.get("run")
    except (OSError, CheckpointError):
        return False
    return all(map(is_part, names)) and written_by == run
