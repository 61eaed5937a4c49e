"""Write a folder atomically: write a temporary folder, sync it to disk, then rename it.

All system calls are in this file, in the order in which they are made. If the machine stops after
any of them, a reader finds a complete checkpoint, either at the target or under the temporary name
of the replaced one.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from composable._support.paths import create_descriptor
from composable.checkpoint.errors import (
    CheckpointError,
    CheckpointExistsError,
    UnwritableCheckpointError,
)
from composable.checkpoint.manifest import FILES, FileRecord, is_part
from composable.checkpoint.safetensors import Write

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


Check: TypeAlias = Callable[[Path, bool], None]
Remove: TypeAlias = Callable[[Path], None]


class _Output:
    """A file that is hashed while it is written."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.size, self.hash = descriptor, 0, sha256()

    def __call__(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.hash.update(view)
        self.size += len(view)
        while len(view):
            view = view[os.write(self.descriptor, view) :]


def write_file(path: Path, content: Callable[[Write], object]) -> FileRecord:
    descriptor = create_descriptor(path)
    try:
        output = _Output(descriptor)
        content(output)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(output.size, output.hash.hexdigest())


@contextmanager
def writable(target: Path) -> Iterator[None]:
    """Convert errors of the operating system."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnwritableCheckpointError(
            f"{target} cannot be written: {error.strerror or error}{_advice(error)} An earlier "
            "checkpoint at this path is unchanged."
        ) from error


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


def _check_place(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite and not target.is_symlink():
        raise CheckpointExistsError(f"{target} exists: use another folder, or overwrite=True.")
    if target.is_symlink():
        raise CheckpointExistsError(
            f"{target} is a link to {os.readlink(target)}, and no checkpoint is written through a "
            "link: remove the link, or use another path."
        )
    if not target.is_dir():
        raise CheckpointExistsError(
            f"{target} is not a directory and will not be overwritten: move it."
        )
    if others := sorted(name for name in os.listdir(target) if not is_part(name)):
        raise CheckpointExistsError(
            f"{target} contains {others[0]!r}, which is not part of a checkpoint, and will not be "
            "overwritten: move it, or use another folder."
        )


def remove_files(folder: Path) -> None:
    """Delete the files of a checkpoint, and their folder if it is then empty, ignoring errors."""
    names = list(FILES)
    with suppress(OSError):
        names = sorted(filter(is_part, os.listdir(folder)))
    for name in names:
        with suppress(OSError):
            os.unlink(folder / name)
    with suppress(OSError):
        os.rmdir(folder)


remove_tree = partial(shutil.rmtree, ignore_errors=True)


def discard(folder: Path, remove: Remove = remove_files) -> None:
    """Delete a folder, atomically: a reader never finds part of it."""
    # Readers ignore this name: it marks the folder of an unfinished writer.
    aside = beside(folder, "partial")
    os.rename(folder, aside)
    remove(aside)


@contextmanager
def staging(
    target: Path, overwrite: bool, check: Check = _check_place, remove: Remove = remove_files
) -> Iterator[Path]:
    """Create a temporary folder next to the target, locked while its writer is alive.

    Args:
        target: The folder that is written.
        overwrite: Whether an existing one may be replaced.
        check: Raises an error if the target must not be replaced. By default, only a checkpoint is.
        remove: Deletes a temporary folder. By default, only the files of a checkpoint.

    Raises:
        CheckpointExistsError: The target may not be overwritten.
    """
    if not os.path.lexists(target):  # after an interrupted overwrite
        for aside in _leftovers(target, "replaced")[:1]:
            os.rename(aside, target)
    check(target, overwrite)
    lock = None
    try:
        while True:
            partial = beside(target, "partial")
            os.mkdir(partial)
            lock = _lock(partial)
            if lock is None or is_still(partial, lock):
                break
            os.close(lock)  # another process deleted the folder before it was locked
            lock = None
        yield partial
    except BaseException:
        remove(partial)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def commit(partial: Path, target: Path) -> None:
    """Rename a temporary folder to the target, which is deleted once the new one is on disk."""
    sync(partial)
    aside = beside(target, "replaced")
    try:
        if os.path.lexists(target):
            os.rename(target, aside)
        os.rename(partial, target)
    except BaseException:
        with suppress(OSError):
            if not os.path.lexists(target):
                os.rename(aside, target)
        raise
    sync(target.parent)  # before anything is deleted


@contextmanager
def new_folder(target: Path, check: Check = _check_place) -> Iterator[Path]:
    """Write a folder of any files under a temporary name, and rename it if no error is raised.

    A folder that it replaces is exchanged with it, in one step. Where the system can't do that, the
    old one is renamed first; after a kill in between, the next writer restores its name.

    Args:
        target: The folder.
        check: Raises an error if the target must not be replaced. By default, nothing is.
    """
    with staging(target, False, check, remove_tree) as folder:
        yield folder
        sync_all(folder)
        check(target, False)  # again: the files took their time
        if not (os.path.lexists(target) and _exchange(folder, target)):
            commit(folder, target)
        sync(target.parent)
        remove_tree(folder)  # the old one, if they were exchanged
    clean(target, remove_tree)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, and return whether the system can."""
    import ctypes  # on use

    call = os.name != "nt" and getattr(ctypes.CDLL(None), "renameat2", None)  # of Linux
    here, both = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return bool(call and not call(here, os.fsencode(first), here, os.fsencode(second), both))


def clean(target: Path, remove: Remove = remove_files) -> None:
    """Delete temporary folders of earlier writers of the target, unless they are still running.

    Args:
        target: The folder that is written.
        remove: As of `staging`.
    """
    with suppress(OSError):
        for aside in _leftovers(target, "replaced"):
            remove(aside)
        for partial in _leftovers(target, "partial"):
            lock = _lock(partial)
            if lock is not None:
                remove(partial)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder; return None if it is locked already or locks are not supported."""
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def is_still(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sync_all(folder: Path) -> None:
    """Write the files of a folder to disk, and the folder itself."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Write a file or a folder to disk."""
    if os.name == "nt":  # folders cannot be synced
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def beside(target: Path, kind: str) -> Path:
    """Return a new temporary path next to a target."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.{kind}")


def find_replaced(target: Path) -> list[Path]:
    """List complete checkpoints that an interrupted overwrite of the target renamed."""
    try:
        return _leftovers(target, "replaced")
    except (FileNotFoundError, NotADirectoryError):
        return []


def _leftovers(target: Path, kind: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.{kind}")
    return [target.with_name(n) for n in sorted(os.listdir(target.parent)) if pattern.fullmatch(n)]


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Free some disk space, or keep fewer checkpoints."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ". Use a writable folder."
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ". The parent folder must exist."
    return "."
