"""A lock on the folder of a run: one process at a time trains in it."""

import os
import socket
import time
from pathlib import Path
from typing import IO, Any

from composable._support import strict_json
from composable._support.paths import open_to_write
from composable._support.printable import printable
from composable._support.warn import warn_user
from composable.checkpoint.errors import CheckpointError, UnwritableCheckpointError
from composable.distributed.processes import Processes
from composable.storage.folders import address

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


LOCK = "run.lock"
_MOST = 4096
_held: set[Path] = set()
"""The folders that this process has locked: closing a second file would release the lock."""


class FolderInUseError(CheckpointError):
    """Another process trains in the folder."""


class RunLock:
    """The lock on a folder, which the operating system releases when its process ends.

    It is held while `fit` runs. The file names the process that held it last, so that a Trainer
    that was built before another process trained in the folder does not continue from an old state.
    Trainers of one process share the lock. On Windows, and on file systems without locks, nothing
    is locked.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._file: IO[bytes] | None = None
        self._seen = self._read_if_free()

    def acquire(self) -> None:
        """Lock the folder, which must exist.

        Raises:
            FolderInUseError: Another process holds the lock, or held it since this was created.
            CheckpointError: The file of the lock is a link.
        """
        if fcntl is None or self.folder in _held:
            return
        try:
            self._file = open_to_write(self.folder / LOCK, "a+b")
        except FileExistsError as error:  # a link
            raise CheckpointError(str(error)) from None
        try:
            owner = _lock(self._file, self.folder)
            if owner not in (self._seen, {}) and owner.get("pid") != os.getpid():
                raise FolderInUseError(
                    f"{address(self.folder)}: {_describe(owner)} trained in this folder after this "
                    "Trainer was built; build the Trainer again to continue from its checkpoint."
                )
        except FolderInUseError:
            self.release()
            raise
        self._seen = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        self._file.truncate(0)
        self._file.write(strict_json.dump(self._seen))
        self._file.flush()
        os.fsync(self._file.fileno())  # other machines read it
        _held.add(self.folder)

    @property
    def held(self) -> bool:
        """Whether the folder is locked."""
        return self._file is not None

    @property
    def owner(self) -> dict[str, Any]:
        """What names the process that held the lock last."""
        return self._seen

    def release(self) -> None:
        """Release the lock."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            _held.discard(self.folder)

    def _read_if_free(self) -> dict[str, Any]:
        """Return the last owner, after a check that no process holds the lock."""
        if fcntl is None or self.folder in _held or not (self.folder / LOCK).is_file():
            return {}
        try:
            with open_to_write(self.folder / LOCK, "r+b") as file:
                return _lock(file, self.folder)
        except OSError:  # a folder that is only read
            return {}


def check_shared(folder: Path, lock: RunLock | None, *, needed: bool) -> None:
    """Check that all processes see the folder that rank 0 has locked; warn if they do not.

    Args:
        folder: The folder.
        lock: The lock of rank 0, or None on other ranks, and if the folder is not locked.
        needed: Whether every process writes to it.

    Raises:
        UnwritableCheckpointError: It is needed, and they do not.
    """
    processes = Processes.current()
    owner = processes.broadcast(None if lock is None or not lock.held else lock.owner)
    if owner is None:
        return
    try:
        with (folder / LOCK).open("rb") as file:
            shared = _read(file) == owner
    except OSError:
        shared = False
    hosts = sorted({*processes.gather(None if shared else socket.gethostname())} - {None})
    if not hosts:
        return
    text = (
        f"save_folder={str(folder)!r} on {', '.join(hosts)[:100]} is not the folder of rank 0 on "
        f"{owner['host']}: "
    )
    advice = "use a file system that all machines share, or a URL such as s3://bucket/run."
    if needed:
        raise UnwritableCheckpointError(
            f"{text}every process writes a part of a sharded checkpoint; {advice}"
        )
    if processes.is_main:
        warn_user(
            f"{text}checkpoints are on {owner['host']} alone, and no other machine can resume from "
            f"them; {advice}"
        )


def _lock(file: IO[bytes], folder: Path) -> dict[str, Any]:
    """Lock the file of a folder, and return who held it last."""
    try:
        # Unlike flock, not inherited by the workers of a loader, which may outlive the process.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise FolderInUseError(
            f"{address(folder)} is in use: {_describe(_read(file))} trains in it. Wait for that "
            "process or end it, or use another save_folder."
        ) from None
    except OSError:  # the file system has no locks
        pass
    return _read(file)


def _read(file: IO[bytes]) -> dict[str, Any]:
    file.seek(0)
    try:
        owner = strict_json.load(file.read(_MOST), LOCK)
    except strict_json.InvalidJSONError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _describe(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return printable(f"process {owner.get('pid')} on {owner.get('host')}"[:200])
