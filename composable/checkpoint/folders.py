"""The folder in which checkpoints lie."""

import os
import secrets
import shutil
from pathlib import Path

from composable.checkpoint.errors import UnwritableCheckpointError

__all__ = ["delete", "make_folder"]


def make_folder(folder: Path) -> None:
    """Make a folder for checkpoints, and those above it.

    Raises:
        UnwritableCheckpointError: The system refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{folder} can't be made: {error.strerror or error}. Give a folder that you may write "
            "to."
        ) from error


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint: it is gone at once, and never there in part.

    Raises:
        UnwritableCheckpointError: The system refuses.
    """
    # Under such a name it is what a writer left unfinished, which readers pass over.
    aside = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(8)}.partial")
    try:
        os.rename(checkpoint, aside)
        shutil.rmtree(aside, ignore_errors=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnwritableCheckpointError(
            f"{checkpoint} can't be deleted: {error.strerror or error}."
        ) from error
