"""Create the folder of checkpoints, and delete checkpoints."""

import os
import secrets
import shutil
from pathlib import Path

from composable.checkpoint.errors import UnwritableCheckpointError

__all__ = ["delete", "make_folder"]


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


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint atomically: a reader never finds part of it.

    Raises:
        UnwritableCheckpointError: The checkpoint cannot be deleted.
    """
    # Readers ignore this name: it marks the folder of an unfinished writer.
    aside = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(8)}.partial")
    try:
        os.rename(checkpoint, aside)
        shutil.rmtree(aside, ignore_errors=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{checkpoint} cannot be deleted: {error.strerror or error}."
        ) from error
