"""Select the checkpoint to resume from."""

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from composable._support.object_stores import OPEN
from composable._support.warn import warn_user
from composable.checkpoint.errors import (
    BrokenCheckpointWarning,
    CheckpointError,
    CheckpointExistsError,
    MismatchError,
    MissingCheckpointError,
    VersionError,
)
from composable.distributed.processes import Processes, attempt
from composable.resume.verify import Reader, ResumePoint
from composable.storage.folders import address, remote_at

if TYPE_CHECKING:
    from composable.checkpoint.files import Found
    from composable.resume.foreign import ForeignPoint


T = TypeVar("T")
_HINT = "; pass load_weights_only=True to start a new run from the weights in a file"


def find_resume_point(
    load_path: Any, *, folder: Path | None, reader: Reader, ignored: Sequence[str] = ()
) -> "ResumePoint | ForeignPoint | None":
    """Return the checkpoint to resume from, or None.

    Args:
        load_path: The user's: a checkpoint, one of another trainer, or a folder of several, whose
            latest is used. Rank 0's value counts.
        folder: A folder to look in first; it may be missing or empty.
        reader: Reads the checkpoint.
        ignored: Patterns of entries that are not loaded, and may be missing.

    Raises:
        CheckpointError: `load_path` cannot be read.
    """
    if folder is not None:
        _check_all_see_the_same(folder, reader.processes)
        latest = latest_valid(folder, reader)
        if latest is not None:
            return attrs.evolve(latest, restart=True)
    given = reader.processes.broadcast(None if load_path is None else str(load_path))
    if given is None:
        return None
    path = Path(given)
    if reader.processes.on_main(lambda: looks_like_checkpoint(path)):
        return reader.point(path, ignored)
    from composable.resume.foreign import read_foreign  # on use

    foreign = reader.agree(lambda: read_foreign(path))
    if foreign is not None:
        return foreign
    latest = latest_valid(path, reader)
    if latest is not None:
        return latest
    raise MissingCheckpointError(
        f"load_path={given!r} must be a checkpoint, or a folder with a complete one"
        f"{_HINT if path.is_file() else ''}."
    )


def _check_all_see_the_same(folder: Path, processes: Processes) -> None:
    """Check that all machines see the same latest checkpoint, so that none is missed.

    Raises:
        MissingCheckpointError: They do not.
    """
    if not processes.several or folder in OPEN:
        return
    from composable.checkpoint import files  # on use: it is slow to import

    def look() -> str:
        whole = files.find(folder)[0] if folder.is_dir() else []
        return next((one.path.name for one in whole if one.manifest.info.get("complete")), "none")

    looks = processes.local_rank == 0 or processes.is_main
    latest = attempt(look)[0] if looks else None  # an error is raised when it is read
    (host, first), *others = processes.gather([socket.gethostname(), latest])
    for rank, (other, seen) in enumerate(others, 1):
        if seen not in (None, first):
            raise MissingCheckpointError(
                f"the latest checkpoint in save_folder={str(folder)!r} is {first} for rank 0 on "
                f"{host}, and {seen} for rank {rank} on {other}: they do not share the folder. Use "
                "a file system that all machines share, or a URL; or copy the checkpoint to all."
            )


_FIX = "pass autoresume=True to resume that run, save_overwrite=True"


def check_folder_is_ours(folder: Path, run: str | None, fix: str = _FIX) -> None:
    """Check that a folder has no checkpoints of another run.

    Args:
        folder: The folder; it may be missing.
        run: The id of the run.
        fix: What to do if it has some, up to how to replace them, for the error.

    Raises:
        CheckpointExistsError: It has.
    """
    from composable.checkpoint import files  # on use: it is slow to import

    remote = remote_at(folder)
    with nullcontext((None, folder)) if remote is None else remote.outline() as (_, listed):
        whole = files.find(listed)[0] if listed.is_dir() else []
    others = [found.path.name for found in whole if found.manifest.info.get("run") != run]
    if others:
        raise CheckpointExistsError(
            f"save_folder={address(folder)!r} has checkpoints of another run, such as {others[0]}; "
            f"{fix} to replace checkpoints of the same name, or another folder."
        )


def refresh_folder(folder: Path | None, *, resume: bool) -> None:
    """Let the local folder of a URL have what is there, on each machine.

    Args:
        folder: The folder; nothing is done for one without a URL.
        resume: Copy the checkpoint to resume from too.
    """
    remote, processes = OPEN.get(folder), Processes.current()
    if remote is not None:
        alone = not processes.several
        names = processes.on_main(lambda: remote.refresh(resume=resume, alone=alone))
        _on_other_machines(lambda: remote.fetch(names))


def share_folder(folder: Path) -> None:
    """Let each machine have the latest and the best checkpoint of this run, if it has a URL."""
    remote, processes = OPEN.get(folder), Processes.current()
    if remote is not None and processes.several:
        names = processes.on_main(remote.share)
        _on_other_machines(lambda: remote.fetch(names))


def copy_here(name: str, url: str, *, resumes: bool) -> Path:
    """Return the folder on each machine with a copy of a checkpoint, or of the latest at a URL.

    Args:
        name: The name of the argument, for errors.
        url: The URL.
        resumes: Whether the latest must be one from which a run may resume.
    """
    from composable.storage.copies import local  # on use: it is slow to import

    def copy() -> str:
        return str(local(name, url, "latest" if resumes else "newest", into=token))

    processes = Processes.current()
    token = processes.broadcast(token_hex(8))
    path = processes.on_main(copy)
    _on_other_machines(copy)
    return Path(path)


def _on_other_machines(function: Callable[[], Any]) -> None:
    """Call a function on the first process of each machine, unless rank 0 runs there."""
    processes = Processes.current()
    if processes.several:
        first = processes.local_rank == 0 and not processes.is_main
        processes.together(function if first else lambda: None)


def looks_like_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint's, complete or not."""
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
    paths = reader.processes.on_main(lambda: complete_checkpoints(folder, run, max_batch))
    return first_valid(paths, reader.point, warn=reader.processes.is_main)


def first_valid(
    paths: Iterable[str | Path], read: Callable[[Path], T], *, warn: bool = True
) -> T | None:
    """Return the first checkpoint that can be read, or None, and warn of those before.

    Args:
        paths: The checkpoints, the latest first.
        read: Returns the checkpoint at a path, or raises a `CheckpointError`.
        warn: Whether to warn.
    """
    for path in map(Path, paths):
        try:
            return read(path)
        except (MismatchError, VersionError):
            raise
        except CheckpointError as error:  # the bytes are only checked now
            if warn:
                _warn_broken(path, error)
    return None


def complete_checkpoints(folder: Path, run: str | None, max_batch: int | None = None) -> list[str]:
    """Return the paths of the checkpoints from which a run may resume, the latest first."""
    return [
        str(found.path)
        for found in _find(folder)
        if found.manifest.info.get("complete")
        and run in (None, found.manifest.info.get("run"))
        and (max_batch is None or found.manifest.batch <= max_batch)
    ]


def latest_weights(load_path: str | Path) -> Path:
    """Return a checkpoint or weights file, or the latest checkpoint of a folder."""
    path = Path(load_path)
    found = [] if looks_like_checkpoint(path) else _find(path)
    return found[0].path if found else path


def _find(folder: Path) -> "list[Found]":
    """Return the checkpoints of a folder, the latest first, and warn of those that are damaged."""
    from composable.checkpoint import files  # on use: it is slow to import

    if not folder.is_dir():
        return []
    whole, broken = files.find(folder)
    for one in broken:
        if isinstance(one.error, VersionError) and not whole:
            raise one.error
        _warn_broken(one.path, one.error)
    return whole


def _warn_broken(path: Path, error: Exception) -> None:
    place = address(path)
    warn_user(f"{place} is skipped, because it is damaged: {error}", BrokenCheckpointWarning)


def read_point(path: Path, reader: Reader, *, run: str) -> ResumePoint:
    """Read a checkpoint of a run, complete or not.

    Raises:
        MismatchError: It belongs to another run.
        CheckpointError: It cannot be read.
    """
    point = reader.point(path, ("*",))
    if point.run != run:
        raise MismatchError(f"{path} was written by another run, {point.run}.")
    return point
