"""From which checkpoint a run goes on, and what of it is read."""

import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.checkpoint import files
from composable.checkpoint.errors import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    VersionError,
)
from composable.checkpoint.filters import replaced
from composable.checkpoint.manifest import MANIFEST
from composable.checkpoint.tree import unpack
from composable.core.key import Key
from composable.core.time import Time, Timestamp

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
    """What `composable.trainer.run_state.take` returned."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.tree["key"].seed  # type: ignore[no-any-return]

    @property
    def fits(self) -> int:
        """How often training had begun."""
        fits = self.tree.get("loop", {}).get("fits", 0)
        return fits if isinstance(fits, int) else 0

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


def refuse_others(folder: Path, run: str | None) -> None:
    """See that a folder has no checkpoints but those of the run.

    Raises:
        CheckpointExistsError: It has.
    """
    if not folder.is_dir():
        return
    whole, _ = files.find(folder)
    others = [found.path.name for found in whole if found.manifest.info.get("run") != run]
    if others:
        raise CheckpointExistsError(
            f"save_folder={str(folder)!r} has checkpoints of another run, such as {others[0]}: "
            "autoresume=True goes on with that run, save_overwrite=True replaces what has the same "
            "name, and another folder keeps them apart."
        )


def is_checkpoint(path: Path) -> bool:
    """Whether a path is that of a checkpoint, whole or not."""
    return (path / MANIFEST).exists()


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
    if not isinstance(data, dict) or not {"run", "on_device", "state"} <= data.keys():
        raise MismatchError(f"{path} was not written by a Trainer: load its weights, or read it.")
    if not contents.manifest.info.get("complete") and not ignored:
        raise MismatchError(
            f"{path} is a part of a run, saved with save_weights_only or save_ignore_keys, and a "
            "run can't go on from it: begin another with load_weights_only=True, or say in "
            "load_ignore_keys= what is not to be loaded."
        )
    tensors, elsewhere = dict(contents.tensors), data["on_device"]
    if not isinstance(elsewhere, list) or not all(name in tensors for name in map(str, elsewhere)):
        raise DamagedCheckpointError(f"{path} is no run: on_device doesn't name its tensors.")
    for name in map(str, elsewhere):
        tensors[name] = tensors[name].to(device)
    tree = unpack(tensors, data)
    _check_kinds(path, tree)
    run = str(contents.manifest.info.get("run"))
    return Source(path, run, tree["run"], tree["state"])


_KINDS: dict[str, Any] = {
    "model": dict,
    "optimizers": list,
    "schedulers": list,
    "loss": (Tensor, type(None)),
    "memory": dict,
    "metrics": dict,
    "timestamp": Timestamp,
    "previous_timestamp": Timestamp,
    "max_duration": (Time, type(None)),
    "key": Key,
    "loop": dict,
    "callbacks": dict,
}


def _check_kinds(path: Path, tree: dict[str, Any]) -> None:
    """What was read is what a run is made of: its bytes may be whole, and yet another's."""
    state = tree["state"]
    if not isinstance(tree["run"], dict) or not isinstance(state, dict):
        raise DamagedCheckpointError(f"{path} is no run: its state is a {type(state).__name__}.")
    for name, value in state.items():
        if name not in _KINDS:
            raise DamagedCheckpointError(f"{path} is no run: its state has {name[:80]!r}.")
        if not isinstance(value, _KINDS[name]):
            raise DamagedCheckpointError(
                f"{path} is no run: {name} in its state is a {type(value).__name__}."
            )
    for name in ("timestamp", "key"):
        if name not in state:
            raise DamagedCheckpointError(f"{path} is no run: its state has no {name}.")


def newest_weights(load_path: str | Path) -> Path:
    """The checkpoint or file of weights that a user named, or the newest in a folder of several."""
    path = Path(load_path)
    if not path.is_dir() or is_checkpoint(path):
        return path
    whole, broken = files.find(path)
    for one in broken:
        _warn_broken(one.path, one.error)
    return whole[0].path if whole else path
