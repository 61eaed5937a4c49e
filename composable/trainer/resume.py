"""Select the checkpoint to resume from, and read it."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from composable.checkpoint.errors import (
    BrokenCheckpointWarning,
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    VersionError,
)
from composable.checkpoint.filters import covers, expanded, replaced
from composable.core._printable import printable, shorten
from composable.core._warnings import warn_user
from composable.core.state import State
from composable.trainer._differences import ChangedRunWarning, compare
from composable.trainer.divided_parts import divided_parameters
from composable.trainer.reading import Reader, replaced_while_read
from composable.trainer.structure import check_entries

if TYPE_CHECKING:
    from composable.checkpoint.files import Contents

__all__ = [
    "BrokenCheckpointWarning",
    "ChangedRunWarning",
    "ResumePoint",
    "check_folder_is_ours",
    "find_resume_point",
    "is_checkpoint",
    "latest_valid",
    "latest_weights",
    "new_run_id",
    "read_point",
]

_COMPARED = (
    *("algorithms", "requested_duration", "epoch_length", "model", "modules", "loss_fn", "data"),
    *("evaluators", "options", "schedulers", "device", "num_threads", "torch"),
)
_MOST_SHOWN = 20


_HINT = "; pass load_weights_only=True to start a new run from the weights in a file"


@attrs.frozen(eq=False)
class ResumePoint:
    """A checkpoint to resume from."""

    path: Path
    run: str
    """The id of the run that wrote it."""
    description: dict[str, Any]
    """The description of that run."""
    tree: dict[str, Any]
    """What `composable.trainer.run_state.capture` returned; with an `outline`, its tensors have no
    values before `load`."""
    reader: Reader
    outline: "Contents | None" = None
    """What `reader` returned, until the tensors have values."""
    restart: bool = False
    """Whether the same script is run again, rather than another one that resumes the run."""

    def load(self, state: State) -> "ResumePoint":
        """Return the point with the values of all tensors: of divided ones, those of this process.

        Args:
            state: The state of the run that was built.
        """
        outline = self.outline
        if outline is None:
            return self
        like = divided_parameters(state, self.tree, outline.tensors, str(self.path))
        contents = self.reader.agree(lambda: self.reader.read_parts(outline, like))
        tree = _unpack(contents, self.reader)["state"]
        return attrs.evolve(self, tree=tree, outline=None)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.tree["key"].seed  # type: ignore[no-any-return]

    @property
    def num_fits(self) -> int:
        """How often training was started."""
        count = self.tree.get("progress", {}).get("num_fits", 0)
        return count if isinstance(count, int) else 0

    def without(self, patterns: Sequence[str], own: dict[str, Any]) -> dict[str, Any]:
        """Return the tree; entries whose path matches a pattern come from `own`."""
        return replaced(self.tree, own, expanded(patterns))  # type: ignore[no-any-return]

    def hyperparameters(self, requested: dict[str, Any], ignored: Sequence[str]) -> dict[str, Any]:
        """Return the hyperparameters that the run has after the resume: the saved ones.

        Args:
            requested: The hyperparameters of the run that was built, by path in the state.
            ignored: Patterns of entries that are not loaded, and stay as requested.
        """
        saved = self.description.get("hyperparameters")
        saved = saved if isinstance(saved, dict) else {}
        return {
            path: own if covers(path, ignored) else saved.get(path, own)
            for path, own in requested.items()
        }

    def warn_of_changes(self, now: dict[str, Any], requested: dict[str, Any]) -> None:
        """Warn if the run differs from the saved one, and of requests that have no effect.

        Args:
            now: The description of the run after the resume.
            requested: The hyperparameters that were requested.
        """
        before = self.description
        changed = [
            f"{path}: {_text(saved)} -> {_text(own)}"
            for key in _COMPARED
            for path, saved, own in compare(before.get(key), now.get(key), key)
        ]
        if changed:
            warn_user(
                f"the run resumed from {self.path} differs from the saved one, so its results may "
                f"differ from those of an uninterrupted run:{_lines(changed)}",
                ChangedRunWarning,
            )
        unused = [
            f"{path}: {_text(saved)}, not the requested {_text(own)}"
            for path, saved, own in compare(now["hyperparameters"], requested)
        ]
        if unused:
            warn_user(
                f"the run resumed from {self.path} continues with the hyperparameters of the "
                f"checkpoint:{_lines(unused)}\nTo use the requested ones, pass "
                "load_ignore_keys=['optimizers/*/param_groups'] for those of optimizers, or "
                "['rates'] to restart torch schedulers.",
                ChangedRunWarning,
            )


def _lines(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return "".join(f"\n  {printable(text)}" for text in [*texts[:_MOST_SHOWN], *more])


def _text(value: Any) -> str:
    return shorten(value, 200) if isinstance(value, int) else str(value)[:200]


def new_run_id() -> str:
    """Return an id that no other run has."""
    return secrets.token_hex(8)


def find_resume_point(
    load_path: Any, *, folder: Path | None, reader: Reader, ignored: Sequence[str] = ()
) -> ResumePoint | None:
    """Return the checkpoint to resume from, or None.

    Args:
        load_path: The user's: a checkpoint, or a folder of several, whose latest is used. That of
            rank 0 is used.
        folder: A folder to look in first; it may be missing or empty.
        reader: Reads the checkpoint.
        ignored: Patterns of entries that are not loaded, and may be missing.

    Raises:
        CheckpointError: `load_path` cannot be read.
    """
    if folder is not None:
        latest = latest_valid(folder, reader)
        if latest is not None:
            return attrs.evolve(latest, restart=True)
    given = reader.processes.broadcast(None if load_path is None else str(load_path))
    if given is None:
        return None
    path = Path(given)
    if reader.processes.on_main(lambda: is_checkpoint(path)):
        return _read(path, reader, ignored)
    latest = latest_valid(path, reader)
    if latest is not None:
        return latest
    raise MissingCheckpointError(
        f"load_path={given!r} must be a checkpoint, or a folder with a complete one"
        f"{_HINT if path.is_file() else ''}."
    )


def check_folder_is_ours(folder: Path, run: str | None) -> None:
    """Check that a folder has no checkpoints of another run.

    Raises:
        CheckpointExistsError: It has.
    """
    from composable.checkpoint import files  # on use: it is slow to import

    if not folder.is_dir():
        return
    whole, _ = files.find(folder)
    others = [found.path.name for found in whole if found.manifest.info.get("run") != run]
    if others:
        raise CheckpointExistsError(
            f"save_folder={str(folder)!r} has checkpoints of another run, such as {others[0]}; "
            "pass autoresume=True to resume that run, save_overwrite=True to replace checkpoints "
            "of the same name, or another folder."
        )


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is that of a checkpoint, complete or not."""
    from composable.checkpoint.manifest import MANIFEST  # on use: it is slow to import

    return (path / MANIFEST).exists()


def latest_valid(
    folder: Path, reader: Reader, *, run: str | None = None, max_batch: int | None = None
) -> ResumePoint | None:
    """Return the latest complete checkpoint in a folder, or None.

    Args:
        folder: Where to look.
        reader: Reads the checkpoint. A checkpoint that is damaged for one of its processes is
            skipped by all.
        run: The id of the run that wrote it; any run if None.
        max_batch: The number of batches that it may not exceed.
    """
    paths = reader.processes.on_main(lambda: _complete(folder, run, max_batch))
    for path in map(Path, paths):
        try:
            return _read(path, reader, ())
        except (MismatchError, VersionError):
            raise
        except CheckpointError as error:  # the bytes are only checked now
            if reader.processes.is_main:
                _warn_broken(path, error)
    return None


def _complete(folder: Path, run: str | None, max_batch: int | None) -> list[str]:
    """Return the paths of the checkpoints from which a run may resume, the latest first."""
    from composable.checkpoint import files  # on use: it is slow to import

    if not folder.is_dir():
        return []
    whole, broken = files.find(folder)
    for one in broken:
        _warn_broken(one.path, one.error)
    return [
        str(found.path)
        for found in whole
        if found.manifest.info.get("complete")
        and run in (None, found.manifest.info.get("run"))
        and (max_batch is None or found.manifest.batch <= max_batch)
    ]


def latest_weights(load_path: str | Path) -> Path:
    """Return a checkpoint or weights file, or the latest checkpoint of a folder."""
    from composable.checkpoint import files  # on use: it is slow to import

    path = Path(load_path)
    if not path.is_dir() or is_checkpoint(path):
        return path
    whole, broken = files.find(path)
    for one in broken:
        _warn_broken(one.path, one.error)
    return whole[0].path if whole else path


def _warn_broken(path: Path, error: Exception) -> None:
    warn_user(f"{path} is skipped, because it is damaged: {error}", BrokenCheckpointWarning)


def read_point(path: Path, reader: Reader, *, run: str) -> ResumePoint:
    """Read a checkpoint of a run, complete or not.

    Raises:
        MismatchError: It belongs to another run.
        CheckpointError: It cannot be read.
    """
    point = _read(path, reader, ("*",))
    if point.run != run:
        raise MismatchError(f"{path} was written by another run, {point.run}.")
    return point


def _read(path: Path, reader: Reader, ignored: Sequence[str]) -> ResumePoint:
    def read() -> tuple[ResumePoint, float]:
        contents = reader.read(path)
        return _point_of(path, contents, reader, ignored), contents.manifest.created

    point, created = reader.agree(read)
    if len(set(reader.processes.gather(created))) > 1:
        raise replaced_while_read(path)
    return point


def _point_of(
    path: Path, contents: "Contents", reader: Reader, ignored: Sequence[str]
) -> ResumePoint:
    """Return what a checkpoint contains, after a check that it is one of a run."""
    data = contents.data
    if not isinstance(data, dict) or not {"run", "on_device", "state"} <= data.keys():
        raise MismatchError(
            f"{path} was not written by a Trainer; load its weights with load_weights_only=True."
        )
    if not contents.manifest.info.get("complete") and not ignored:
        raise MismatchError(
            f"{path} was saved with save_weights_only or save_ignore_keys, and cannot be used to "
            "resume; pass load_weights_only=True to start a new run from its weights, or name "
            "the missing entries in load_ignore_keys=."
        )
    on_device = data["on_device"]
    if not isinstance(on_device, list) or not all(
        name in contents.tensors for name in map(str, on_device)
    ):
        raise DamagedCheckpointError(f"{path} is damaged: on_device does not name its tensors.")
    tree = _unpack(contents, reader)
    _check_types(path, tree)
    run, outline = str(contents.manifest.info.get("run")), contents if reader.divided else None
    return ResumePoint(path, run, tree["run"], tree["state"], reader, outline)


def _unpack(contents: "Contents", reader: Reader) -> Any:
    """Return the tree of a checkpoint, with the tensors that were on a device on that of the run.

    Tensors without values stay on the meta device, and parts of tensors where the parameter is.
    """
    from composable.checkpoint.tree import unpack  # on use: it is slow to import

    tensors = dict(contents.tensors)
    for name in map(str, contents.data["on_device"]):
        if not (tensors[name].is_meta or hasattr(tensors[name], "device_mesh")):
            tensors[name] = tensors[name].to(reader.device)
    try:
        return unpack(tensors, contents.data)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{contents.path}: {error}") from error


def _check_types(path: Path, tree: dict[str, Any]) -> None:
    """Check that the tree is that of a run: a file may be intact, and written by other code."""
    state = tree["state"]
    if not isinstance(tree["run"], dict) or not isinstance(state, dict):
        raise DamagedCheckpointError(f"{path} is damaged: its state is a {type(state).__name__}.")
    check_entries(state, str(path))
    for name in ("timestamp", "key"):
        if name not in state:
            raise DamagedCheckpointError(f"{path} is damaged: it has no {name}.")
