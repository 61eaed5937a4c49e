"""From which checkpoint a run goes on, and what of it is read."""

import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from composable.checkpoint import files
from composable.checkpoint.errors import (
    CheckpointError,
    MismatchError,
    MissingCheckpointError,
    VersionError,
)
from composable.checkpoint.narrow import replaced
from composable.checkpoint.tree import unpack

__all__ = ["BrokenCheckpointWarning", "ChangedRunWarning", "Source", "find_source", "new_run"]


class BrokenCheckpointWarning(UserWarning):
    """A checkpoint is not whole, and an older one is taken."""


class ChangedRunWarning(UserWarning):
    """A run goes on otherwise than it was begun."""


@attrs.frozen(eq=False)
class Source:
    """A checkpoint from which a run goes on."""

    path: Path
    run: str
    """The number of the run that wrote it."""
    description: dict[str, Any]
    """What that run said of itself."""
    tree: dict[str, Any]
    """What `composable.snapshot.take` returned."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.tree["key"].seed  # type: ignore[no-any-return]

    @property
    def fits(self) -> int:
        """How often training had begun."""
        return self.tree["loop"]["fits"]  # type: ignore[no-any-return]

    def without(self, patterns: Sequence[str], own: dict[str, Any]) -> dict[str, Any]:
        """The tree in which what has one of the patterns is the run's own."""
        return replaced(self.tree, own, patterns)  # type: ignore[no-any-return]

    def warn_of_changes(self, now: dict[str, Any]) -> None:
        """Say what is other than in the run that was saved, where it was not to be."""
        before = self.description
        changed = [key for key in _COMPARED if before.get(key) != now.get(key)]
        if changed:
            lines = "".join(f"\n  {k}: {before.get(k)} -> {now.get(k)}" for k in changed)
            warnings.warn(
                f"the run goes on from {self.path} otherwise than it was begun, so it is not the "
                f"run that would have been without a stop:{lines}",
                ChangedRunWarning,
                stacklevel=4,
            )


_COMPARED = ("algorithms", "given_duration", "epoch_length", "device", "num_threads", "torch")


def new_run() -> str:
    """A number that no other run has."""
    return secrets.token_hex(8)


def find_source(
    load_path: Any, *, folder: Path | None, device: torch.device, ignored: Sequence[str] = ()
) -> Source | None:
    """The checkpoint from which a run goes on; None where there is none to go on from.

    Args:
        load_path: What the user named: a checkpoint, or a folder of several, whose newest is taken.
        folder: Where to look first, if anywhere; nothing need be there.
        device: Where tensors go that were not on the CPU.
        ignored: What of it will not be loaded, and need not be there.

    Raises:
        CheckpointError: What the user named can't be read.
    """
    if folder is not None and folder.is_dir():
        newest = newest_whole(folder, device)
        if newest is not None:
            return newest
    if load_path is None:
        return None
    path = Path(load_path)
    if is_checkpoint(path):
        return _read(path, device, ignored)
    if path.is_dir():
        newest = newest_whole(path, device)
        if newest is not None:
            return newest
    raise MissingCheckpointError(
        f"load_path={str(load_path)!r} is neither a checkpoint nor a folder that has a whole one."
    )


def is_checkpoint(path: Path) -> bool:
    """Whether a path is that of a checkpoint, whole or not."""
    return (path / files.MANIFEST).exists()


def newest_whole(
    folder: Path, device: torch.device, *, run: str | None = None, batch: int | None = None
) -> Source | None:
    """The newest whole checkpoint in a folder from which a run can go on.

    Args:
        folder: Where to look.
        device: Where tensors go that were not on the CPU.
        run: The run that wrote it, if it matters.
        batch: The most batches that may have been done, if it matters.
    """
    whole, broken = files.find(folder)
    for one in broken:
        _warn_broken(one.path, one.error)
    for found in whole:
        info = found.manifest.info
        if not info.get("complete") or (run is not None and info.get("run") != run):
            continue
        if batch is not None and found.manifest.batch > batch:
            continue
        try:
            return _read(found.path, device, ())
        except (MismatchError, VersionError):
            raise
        except CheckpointError as error:  # its bytes are looked at only now
            _warn_broken(found.path, error)
    return None


def _warn_broken(path: Path, error: Exception) -> None:
    warnings.warn(
        f"{path} is passed over, for it is not whole: {error}",
        BrokenCheckpointWarning,
        stacklevel=6,
    )


def _read(path: Path, device: torch.device, ignored: Sequence[str]) -> Source:
    contents = files.read(path)
    data = contents.data
    if not isinstance(data, dict) or not {"run", "on_device", "tree"} <= data.keys():
        raise MismatchError(f"{path} was not written by a Trainer: load its weights, or read it.")
    tensors = dict(contents.tensors)
    if not contents.manifest.info.get("complete") and not ignored:
        raise MismatchError(
            f"{path} is a part of a run, saved with save_weights_only or save_ignore_keys, and a "
            "run can't go on from it: begin another with load_weights_only=True, or say in "
            "load_ignore_keys= what is not to be loaded."
        )
    for name in data["on_device"]:
        if name in tensors:
            tensors[name] = tensors[name].to(device)
    tree = unpack(tensors, data["tree"])
    return Source(path, str(contents.manifest.info.get("run")), data["run"], tree)
