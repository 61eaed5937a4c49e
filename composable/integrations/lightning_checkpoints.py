"""Checkpoints of Lightning as folders: written atomically, hashed, and read without pickle."""

import os
from pathlib import Path
from typing import Any

from composable._support.checks import as_path
from composable._support.extras import needs
from composable._support.warn import warn_user
from composable.checkpoint.atomic import make_folder
from composable.checkpoint.errors import BrokenCheckpointWarning
from composable.checkpoint.files import delete, read, verify
from composable.checkpoint.tree import pack, unpack
from composable.checkpoint.weights import read_file
from composable.checkpoint.writer import write
from composable.resume.select import complete_checkpoints, first_valid

with needs("composable.integrations.lightning", "lightning"):
    from lightning.pytorch.plugins import CheckpointIO


_RUN = "lightning"
"""The id of the run in the manifest of a checkpoint."""


class SafeCheckpointIO(CheckpointIO):
    """Writes the checkpoints of Lightning in the format of this library, and reads them verified.

    A checkpoint is a folder that is there as a whole or not at all, whenever the process is killed.
    Its values are tensors and plain containers, as `composable.checkpoint.pack` takes them. Files
    of Lightning's `TorchCheckpointIO` are read as well, if they have nothing else.

    It writes nothing for strategies that write sharded checkpoints themselves, as FSDP and
    DeepSpeed do.

    Example:
        >>> import lightning.pytorch as L
        >>> from composable.integrations.lightning import SafeCheckpointIO, latest_checkpoint
        >>> trainer = L.Trainer(plugins=[SafeCheckpointIO()], accelerator="cpu", logger=False)
        >>> # trainer.fit(module, loader, ckpt_path=latest_checkpoint("runs/a"))
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; one at this path is replaced once the new one is on disk.

        Raises:
            UnsavableError: A value is not a tensor or a plain container. The message has its path.
            CheckpointError: It cannot be written, or the path has other files.
        """
        if storage_options is not None:
            raise ValueError(f"storage_options={storage_options!r} must be None.")
        target = as_path("path", path).absolute()
        make_folder(target.parent)
        if target.is_symlink():
            target.unlink()  # of save_last="link", whose checkpoint stays
        info = {
            "batch": checkpoint.get("global_step", 0),
            "run": _RUN,
            # Lightning saves weights alone without its loops; Fabric saves what it is given.
            "complete": "loops" in checkpoint or "state_dict" not in checkpoint,
        }
        write(target, *pack(checkpoint), overwrite=True, info=info)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, all of which is verified, to the CPU; no code in it is executed.

        Raises:
            CheckpointError: See `composable.checkpoint.read`. The message names the file.
        """
        if map_location is not None:
            raise ValueError(f"map_location={map_location!r} must be None: move the tensors later.")
        source = as_path("path", path)
        if source.is_file():
            return read_file(source)  # type: ignore[no-any-return]
        contents = read(source)
        return unpack(contents.tensors, contents.data)  # type: ignore[no-any-return]

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint that this class wrote, unless no other one could be resumed from."""
        target = as_path("path", path).absolute()
        if target.is_symlink():
            target.unlink()
            return
        others = {*complete_checkpoints(target.parent, _RUN)} - {str(target)}
        if not (others and delete(target, _RUN)):
            why = "it is damaged or of another run" if others else "there is no other one"
            warn_user(f"{target} is kept, because {why}.", BrokenCheckpointWarning)


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the latest whole checkpoint that `SafeCheckpointIO` wrote to a folder, or None.

    Pass it to `trainer.fit(module, loader, ckpt_path=...)`: the same script then starts a training,
    and continues it after a kill. All bytes of the checkpoint are verified. Checkpoints with the
    weights only are ignored.

    Args:
        folder: The `dirpath` of `ModelCheckpoint`; it may be missing or empty.

    Warns:
        BrokenCheckpointWarning: A damaged checkpoint is skipped.

    Example:
        >>> import tempfile
        >>> from composable.integrations.lightning import latest_checkpoint
        >>> print(latest_checkpoint(tempfile.mkdtemp()))
        None
    """
    found = complete_checkpoints(as_path("folder", folder), _RUN)
    return first_valid(found, _verified)


def _verified(path: Path) -> Path:
    verify(path)
    return path
