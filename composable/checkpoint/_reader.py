"""Open the files of a checkpoint: all from the same version, each byte read once."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs

from composable.checkpoint import _json
from composable.checkpoint._atomic import find_replaced, is_still
from composable.checkpoint._json import JSON
from composable.checkpoint._safetensors import fill
from composable.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
)
from composable.checkpoint.manifest import (
    MANIFEST,
    MAX_MANIFEST,
    MAX_STATE,
    STATE,
    FileRecord,
    Manifest,
    is_part,
    parse_manifest,
)

__all__ = [
    "Input",
    "Inputs",
    "candidates",
    "check_json",
    "check_sizes",
    "check_state",
    "holds_files_of_one",
    "reading",
]

_CHUNK = 1 << 22
_ATTEMPTS = 20  # retried only if a writer replaced the checkpoint in the meantime


@attrs.define
class Input:
    """A file that is hashed while it is read."""

    where: str
    descriptor: int
    size: int
    hashing: bool = True
    hash: Any = attrs.field(factory=sha256)

    def __call__(self, buffer: memoryview) -> int:
        count = _read_into(self.descriptor, buffer)
        if self.hashing:
            self.hash.update(buffer[:count])
        return count

    def skip(self, count: int) -> None:
        """Skip a number of bytes, which are hashed too if the file is."""
        if not self.hashing:
            os.lseek(self.descriptor, count, os.SEEK_CUR)
            return
        buffer = memoryview(bytearray(min(count, _CHUNK)))
        while count:
            chunk = buffer[: min(count, _CHUNK)]
            fill(self, chunk, self.where)
            count -= len(chunk)

    def seek(self, position: int) -> None:
        """Go to a position in the file."""
        os.lseek(self.descriptor, position, os.SEEK_SET)

    def all(self, limit: int) -> bytearray:
        """Read the whole file."""
        if self.size > limit:
            raise DamagedCheckpointError(
                f"{self.where} has {self.size} bytes, more than the maximum of {limit}."
            )
        raw = bytearray(self.size)
        fill(self, memoryview(raw), self.where)
        return raw

    def check(self, record: FileRecord) -> None:
        """Compare the hash of the bytes read with the manifest."""
        if self.hash.hexdigest() != record.sha256:
            raise DamagedCheckpointError(
                f"{self.where} is damaged: its sha256 is {self.hash.hexdigest()[:16]}..., but "
                f"{MANIFEST} records {record.sha256[:16]}..."
            )


def _read_into(descriptor: int, buffer: memoryview) -> int:
    if hasattr(os, "readv"):
        return os.readv(descriptor, [buffer])
    data = os.read(descriptor, len(buffer))  # Windows
    buffer[: len(data)] = data
    return len(data)


@attrs.define
class Inputs:
    """The open files of a checkpoint."""

    files: dict[str, Input] = attrs.field(factory=dict)
    manifest: Manifest = attrs.field(init=False)

    def close(self) -> None:
        for file in self.files.values():
            os.close(file.descriptor)


def check_sizes(inputs: Inputs) -> Manifest:
    """Compare the sizes of the files with the manifest."""
    for name, record in inputs.manifest.files.items():
        file = inputs.files[name]
        if file.size != record.size:
            raise DamagedCheckpointError(
                f"{file.where} has {file.size} bytes, but {MANIFEST} records "
                f"{record.size}: it is truncated, or belongs to another checkpoint."
            )
    return inputs.manifest


def check_json(inputs: Inputs, name: str) -> bytearray:
    """Read a file of JSON, and compare its hash."""
    raw = inputs.files[name].all(MAX_STATE)
    inputs.files[name].check(inputs.manifest.files[name])
    return raw


def check_state(inputs: Inputs) -> JSON:
    """Read and check the JSON of the state."""
    return _json.load(check_json(inputs, STATE), inputs.files[STATE].where)


class _Moved(Exception):
    """The folder was replaced while its files were being opened."""


@contextmanager
def reading(path: Path) -> Iterator[Inputs]:
    """Open the files of a checkpoint, all from the same version of it."""
    inputs = Inputs()
    try:
        inputs = _open(path)
        yield inputs
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnreadableCheckpointError(
            f"{error.filename or path} cannot be read: {error.strerror or error}."
        ) from error
    finally:
        inputs.close()


def _open(path: Path) -> Inputs:
    for _ in range(_ATTEMPTS):
        # Between the two renames of a writer, the checkpoint is the replaced one.
        for place in [path] if os.path.lexists(path) else find_replaced(path):
            with suppress(_Moved):
                return _open_files(place)
    raise MissingCheckpointError(f"no checkpoint at {path}.")


def _open_files(place: Path) -> Inputs:
    """Open all files before reading any: a folder that is replaced later is still read whole."""
    inputs, folder, name = Inputs(), _open_folder(place), MANIFEST
    try:
        file = inputs.files[name] = _open_file(place, folder, name)
        inputs.manifest = parse_manifest(file.all(MAX_MANIFEST), file.where)
        for name in inputs.manifest.files:
            inputs.files[name] = _open_file(place, folder, name)
    except BaseException as error:
        inputs.close()
        if not isinstance(error, FileNotFoundError):
            raise
        if folder is not None and not is_still(place, folder):
            raise _Moved from None
        raise DamagedCheckpointError(f"{place / name} is missing: incomplete checkpoint.") from None
    finally:
        if folder is not None:
            os.close(folder)
    return inputs


def _open_folder(place: Path) -> int | None:
    """Open the folder itself, which survives a rename; None if the system does not support it."""
    try:
        if os.open in os.supports_dir_fd:
            return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _Moved from None
    except NotADirectoryError:
        raise DamagedCheckpointError(f"{place} is not a directory, so not a checkpoint.") from None
    return None


def _open_file(place: Path, folder: int | None, name: str) -> Input:
    path = place / name
    try:
        where = path if folder is None else name
        descriptor = os.open(where, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DamagedCheckpointError(
                f"{path} is a symbolic link; the files of a checkpoint must not be links."
            ) from None
        error.filename = str(path)
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise DamagedCheckpointError(f"{path} is not a regular file.")
    return Input(str(path), descriptor, status.st_size)


# Do not follow links, and do not block on pipes.
_READ = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def candidates(root: Path) -> list[Path]:
    """List the entries that may be checkpoints.

    Only `reading` tells: a writer may rename a checkpoint between the listing and a look at it.
    """
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        raise MissingCheckpointError(f"no directory {root}.") from None
    except OSError as error:
        raise UnreadableCheckpointError(f"{root} cannot be read: {error.strerror}.") from error
    candidates: dict[Path, None] = {}
    for name in names:
        path = root / name
        if match := _REPLACED.fullmatch(name):  # stands for its target while that is missing
            candidates.setdefault(root / match[1], None)
        elif not (name.startswith(".") or _ASIDE.search(name) or path.is_symlink()):
            candidates[path] = None
    return list(candidates)


_ASIDE = re.compile(r"\.damaged-[0-9]+$")
_REPLACED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.replaced")


def holds_files_of_one(path: Path) -> bool:
    """Return whether a folder has a file of a checkpoint, and so is one, if a broken one."""
    try:
        return any(map(is_part, os.listdir(path)))
    except OSError:
        return False
