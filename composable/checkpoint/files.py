"""A checkpoint as a folder of three files, which is there whole or not at all.

The files are written into a folder beside the target, brought to the disk, and then renamed as one.
The manifest has the size and the hash of each, and of itself, so nothing that was changed, cut off
or exchanged is taken for what was written.
"""

import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.checkpoint import _json
from composable.checkpoint._json import JSON
from composable.checkpoint._tensor_file import (
    DTYPES,
    read_header,
    read_tensors,
    skip_tensors,
    write_tensors,
)
from composable.checkpoint.errors import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    VersionError,
)

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = [
    "Broken",
    "Contents",
    "FileRecord",
    "Found",
    "Manifest",
    "find",
    "read",
    "verify",
    "write",
]

SCHEMA = 1
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_FILES = (TENSORS, STATE, MANIFEST)
_FORMAT = "composable checkpoint"
_MAX_MANIFEST = 1 << 20
_MAX_STATE = 1 << 28
_ATTEMPTS = 20  # of a reader; each but the first needs a writer that was faster


@attrs.frozen
class FileRecord:
    """What the manifest says of a file."""

    size: int
    """In bytes."""
    sha256: str


@attrs.frozen
class Manifest:
    """What a checkpoint says of itself."""

    schema: int
    """The version of the layout."""
    library: str
    """The version of this library that wrote it."""
    torch: str
    created: float
    """When it was written, in seconds since 1970."""
    files: Mapping[str, FileRecord]
    info: Mapping[str, JSON]
    """What the writer said of it. `batch` is what checkpoints are ordered by."""

    @property
    def batch(self) -> int:
        """The number of batches that were done; 0 where the writer didn't say."""
        return self.info.get("batch", 0)  # type: ignore[no-any-return]


@attrs.frozen(eq=False)
class Contents:
    """All of a checkpoint, read and checked."""

    tensors: dict[str, Tensor]
    data: JSON
    manifest: Manifest
    path: Path


@attrs.frozen
class Found:
    """A whole checkpoint in a folder."""

    path: Path
    manifest: Manifest


@attrs.frozen
class Broken:
    """A folder that should be a checkpoint and isn't one."""

    path: Path
    error: CheckpointError


def write(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    data: JSON,
    *,
    overwrite: bool = False,
    info: Mapping[str, JSON] | None = None,
) -> Path:
    """Write a checkpoint: at every moment, a reader finds all of it or none.

    Args:
        folder: The checkpoint. The folder above it must be there.
        tensors: By name.
        data: What JSON can say: see `pack`.
        overwrite: Replace a checkpoint that is there. It stays until the new one is on the disk.
        info: What the manifest shall say of it, as JSON. `batch` is what `find` orders by.

    Returns:
        The folder.

    Raises:
        CheckpointExistsError: Something is there, and it is no checkpoint or `overwrite` is False.
        UnsavableError: `data` or `info` is not JSON, or a dtype is not of the format.
        UnwritableCheckpointError: The system refuses. What was there still is.
    """
    target = _as_path(folder)
    state = _dump_state(data)
    entries = _check_info({} if info is None else dict(info))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise UnsavableError(f"tensor {name!r} has dtype {tensor.dtype}: see pack().")
    try:
        _restore(target)
        _check_place(target, overwrite)
        with _staged(target) as partial:
            records = {
                TENSORS: _write_file(partial / TENSORS, lambda out: write_tensors(out, tensors)),
                STATE: _write_file(partial / STATE, lambda out: out(state)),
            }
            manifest = _dump_manifest(records, entries)
            _write_file(partial / MANIFEST, lambda out: out(manifest))
            _sync_folder(partial)
            _put_in_place(partial, target)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnwritableCheckpointError(
            f"{target} can't be written: {error.strerror or error}{_advice(error)} What was there "
            "before is as it was."
        ) from error
    _clean(target)
    return target


def read(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Contents:
    """Read a checkpoint: all of it is checked before any of it is handed back.

    Args:
        folder: The checkpoint.
        device: Where the tensors shall be.

    Raises:
        MissingCheckpointError: There is none.
        DamagedCheckpointError: A file is missing, or isn't what was written.
        VersionError: It has a layout that this version can't read.
        UnreadableCheckpointError: The system refuses.
    """
    device = torch.device(device)
    path = _as_path(folder)
    with _reading(path) as files:
        manifest, tensors, data = _check_all(files, keep=True)
    if device.type != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Contents(tensors, data, manifest, path)


def verify(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check all of a checkpoint, and keep only its manifest.

    Raises:
        CheckpointError: As `read` does.
    """
    with _reading(_as_path(folder)) as files:
        return _check_all(files, keep=False)[0]


def find(
    folder: str | os.PathLike[str], *, thorough: bool = False
) -> tuple[list[Found], list[Broken]]:
    """Find the checkpoints in a folder, the newest first.

    The order is that of the batches that they say were done, then that of their writing. The name
    of a checkpoint and the times of its files say nothing. Links are not followed.

    Args:
        folder: Where to look; not in the folders below its checkpoints.
        thorough: Check every byte, as `verify` does. Otherwise the manifest and the sizes.

    Returns:
        The whole ones, and the broken ones with what is wrong.

    Raises:
        MissingCheckpointError: There is no such folder.
        UnreadableCheckpointError: The system refuses to list it.
    """
    root = Path(folder).absolute()
    whole: list[Found] = []
    broken: list[Broken] = []
    for path in _candidates(root):
        try:
            with _reading(path) as files:
                manifest = _check_all(files, keep=False)[0] if thorough else _check_sizes(files)
            whole.append(Found(path, manifest))
        except MissingCheckpointError:
            continue  # deleted since it was listed
        except CheckpointError as error:
            broken.append(Broken(path, error))
    whole.sort(key=lambda found: (found.manifest.batch, found.manifest.created), reverse=True)
    return whole, broken


# ---------------------------------------------------------------------------------------------
# Writing


class _Output:
    """A file that is hashed as it is written."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.size, self.hash = descriptor, 0, sha256()

    def __call__(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.hash.update(view)
        self.size += len(view)
        while len(view):
            view = view[os.write(self.descriptor, view) :]


def _write_file(path: Path, content: Any) -> FileRecord:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    try:
        output = _Output(descriptor)
        content(output)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(output.size, output.hash.hexdigest())


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder beside the target, locked for as long as its writer lives."""
    while True:
        partial = _beside(target, "partial")
        os.mkdir(partial)
        lock = _lock(partial)
        if lock is None or _is_still(partial, lock):
            break
        os.close(lock)  # somebody who cleans was faster than the lock
    try:
        yield partial
    except BaseException:
        _remove(partial)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _put_in_place(partial: Path, target: Path) -> None:
    aside = _beside(target, "replaced")
    try:
        if os.path.lexists(target):
            os.rename(target, aside)
        os.rename(partial, target)
    except BaseException:
        with suppress(OSError):
            if not os.path.lexists(target):
                os.rename(aside, target)
        raise
    _sync_folder(target.parent)  # before anything is deleted


def _restore(target: Path) -> None:
    """Bring back what an interrupted overwriting has put aside."""
    if not os.path.lexists(target):
        for aside in _leftovers(target, "replaced"):
            os.rename(aside, target)
            return


def _clean(target: Path) -> None:
    """Delete what earlier writers of the target have left, unless they are still at work."""
    with suppress(OSError):
        for aside in _leftovers(target, "replaced"):
            _remove(aside)
        for partial in _leftovers(target, "partial"):
            lock = _lock(partial)
            if lock is not None:
                _remove(partial)
                os.close(lock)


def _check_place(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise CheckpointExistsError(f"{target} exists: give another folder, or overwrite=True.")
    if target.is_symlink() or not target.is_dir():
        raise CheckpointExistsError(f"{target} is no folder, and is not overwritten: move it.")
    if others := sorted(set(os.listdir(target)).difference(_FILES)):
        raise CheckpointExistsError(
            f"{target} holds {others[0]!r}, which is not of a checkpoint, and is not overwritten: "
            "move it, or give another folder."
        )


def _remove(folder: Path) -> None:
    """Delete a folder of ours, as far as the system lets us; nothing else that may be in it."""
    for name in _FILES:
        with suppress(OSError):
            os.unlink(folder / name)
    with suppress(OSError):
        os.rmdir(folder)


def _lock(folder: Path) -> int | None:
    """Lock a folder if nobody has; None where somebody has or where locks are not to be had."""
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


def _is_still(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # it has no such thing
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.{kind}")


def _leftovers(target: Path, kind: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.{kind}")
    return [target.with_name(n) for n in sorted(os.listdir(target.parent)) if pattern.fullmatch(n)]


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Free some space, or keep fewer checkpoints."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ". Give a folder that you may write to."
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ". The folder above it must be there while it is written."
    return "."


def _as_path(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder).absolute()
    if not path.name or path.name == "..":
        raise ValueError(f"folder={str(folder)!r} must end with the name of the checkpoint.")
    return path


def _dump_state(data: JSON) -> bytes:
    try:
        raw = _json.dump(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsavableError(f"data is not JSON: {error}. Use pack().") from None
    if len(raw) > _MAX_STATE:
        raise UnsavableError(
            f"the state has {len(raw)} bytes beside its tensors, and {_MAX_STATE} is the most: "
            "keep long lists of numbers as tensors."
        )
    return raw


# ---------------------------------------------------------------------------------------------
# The manifest


def _check_info(info: dict[str, JSON]) -> dict[str, JSON]:
    batch = info.get("batch", 0)
    if type(batch) is not int or batch < 0:
        raise UnsavableError(f"batch={batch!r} in info must be an integer from 0 on.")
    return info


def _dump_manifest(records: dict[str, FileRecord], info: dict[str, JSON]) -> bytes:
    body = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "library": sys.modules["composable"].__version__,
        "torch": str(torch.__version__),
        "created": time.time(),
        "info": info,
        "files": {name: attrs.asdict(record) for name, record in records.items()},
    }
    try:
        raw = _seal(body)
        same = _json.load(raw, "info")["info"] == info
    except (TypeError, ValueError, RecursionError, DamagedCheckpointError) as error:
        raise UnsavableError(f"info is not JSON: {error}.") from None
    if not same or len(raw) > _MAX_MANIFEST:
        raise UnsavableError(f"info is not JSON, or has more than {_MAX_MANIFEST} bytes.")
    return raw


def _seal(body: dict[str, JSON]) -> bytes:
    """The manifest as a file: the body and its hash."""
    return _json.dump({**body, "sha256": sha256(_json.dump(body)).hexdigest()}, indent=1)


def _parse_manifest(raw: bytearray, where: str) -> Manifest:
    body = _json.load(raw, where)
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"{where} is no manifest of a checkpoint.")
    schema = body.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise VersionError(
            f"{where} has schema {str(schema)[:40]}, and this version reads {SCHEMA}: "
            "use the version that wrote it, or a newer one."
        )
    body.pop("sha256", None)
    # Compared as bytes: not even a space may differ from what was written.
    if _seal(body) != raw:
        raise DamagedCheckpointError(f"{where} is damaged: its hash is another.")
    try:
        return _as_manifest(body)
    except (TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpointError(f"{where} is not what this library writes: {error}.") from None


def _as_manifest(body: dict[str, JSON]) -> Manifest:
    """A manifest, if each field is what it should be."""
    keys = {"format", "schema", "library", "torch", "created", "info", "files"}
    if body.keys() != keys:
        raise ValueError(f"it has the keys {sorted(body)}, not {sorted(keys)}"[:200])
    for name, kind in (("library", str), ("torch", str), ("created", float), ("info", dict)):
        if type(body[name]) is not kind:
            raise ValueError(f"{name} is a {type(body[name]).__name__}, not a {kind.__name__}")
    files = body["files"]
    if not isinstance(files, dict) or files.keys() != {TENSORS, STATE}:
        raise ValueError(f"its files are {str(list(files))[:120]}, not {TENSORS} and {STATE}")
    batch = body["info"].get("batch", 0)
    if type(batch) is not int or batch < 0:
        raise ValueError(f"batch is {str(batch)[:40]}, not an integer from 0 on")
    return Manifest(
        schema=body["schema"],
        library=body["library"],
        torch=body["torch"],
        created=body["created"],
        files=MappingProxyType({name: _record(name, files[name]) for name in (TENSORS, STATE)}),
        info=MappingProxyType(body["info"]),
    )


def _record(name: str, record: JSON) -> FileRecord:
    if not isinstance(record, dict) or record.keys() != {"size", "sha256"}:
        raise ValueError(f"{name} has no size and sha256")
    size, digest = record["size"], record["sha256"]
    if type(size) is not int or size < 0:
        raise ValueError(f"{name} has size {str(size)[:40]}")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{name} has sha256 {str(digest)[:80]}")
    return FileRecord(size, digest)


# ---------------------------------------------------------------------------------------------
# Reading


@attrs.define
class _Input:
    """A file that is hashed as it is read."""

    where: str
    descriptor: int
    size: int
    hash: Any = attrs.field(factory=sha256)

    def __call__(self, buffer: memoryview) -> int:
        count = _read_into(self.descriptor, buffer)
        self.hash.update(buffer[:count])
        return count

    def all(self, limit: int) -> bytearray:
        """The whole file."""
        if self.size > limit:
            raise DamagedCheckpointError(
                f"{self.where} has {self.size} bytes, and {limit} is the most."
            )
        raw = bytearray(self.size)
        view, filled = memoryview(raw), 0
        while filled < self.size:
            count = self(view[filled:])
            if not count:
                raise DamagedCheckpointError(f"{self.where} ends too early: it is truncated.")
            filled += count
        return raw

    def check(self, record: FileRecord) -> None:
        """Compare what was read with what the manifest says."""
        if self.hash.hexdigest() != record.sha256:
            raise DamagedCheckpointError(
                f"{self.where} is damaged: its bytes are not those that were written (sha256 "
                f"{self.hash.hexdigest()[:16]}..., and {MANIFEST} says {record.sha256[:16]}...)."
            )


def _read_into(descriptor: int, buffer: memoryview) -> int:
    if hasattr(os, "readv"):
        return os.readv(descriptor, [buffer])
    data = os.read(descriptor, len(buffer))  # Windows
    buffer[: len(data)] = data
    return len(data)


_Inputs = dict[str, _Input]


def _check_sizes(files: _Inputs) -> Manifest:
    manifest = _parse_manifest(files[MANIFEST].all(_MAX_MANIFEST), files[MANIFEST].where)
    for name, record in manifest.files.items():
        if files[name].size != record.size:
            raise DamagedCheckpointError(
                f"{files[name].where} has {files[name].size} bytes, and {MANIFEST} says "
                f"{record.size}: it is truncated or of another checkpoint."
            )
    return manifest


def _check_all(files: _Inputs, *, keep: bool) -> tuple[Manifest, dict[str, Tensor], JSON]:
    manifest = _check_sizes(files)
    file = files[STATE]
    raw = file.all(_MAX_STATE)
    file.check(manifest.files[STATE])
    data = _json.load(raw, file.where)
    file = files[TENSORS]
    entries = read_header(file, file.size, file.where)
    tensors: dict[str, Tensor] = {}
    if keep:
        tensors = read_tensors(file, entries, file.where)
    else:
        skip_tensors(file, entries, file.where)
    file.check(manifest.files[TENSORS])
    return manifest, tensors, data


class _Moved(Exception):
    """The folder was replaced while its files were being opened."""


@contextmanager
def _reading(path: Path) -> Iterator[_Inputs]:
    """The files of a checkpoint, all of the same one."""
    files: _Inputs = {}
    try:
        files = _open(path)
        yield files
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise UnreadableCheckpointError(
            f"{error.filename or path} can't be read: {error.strerror or error}."
        ) from error
    finally:
        for file in files.values():
            os.close(file.descriptor)


def _open(path: Path) -> _Inputs:
    for _ in range(_ATTEMPTS):
        # Between two renames of a writer, the checkpoint is the one that it has put aside.
        for place in [path] if os.path.lexists(path) else _put_aside(path):
            with suppress(_Moved):
                return _open_files(place)
    raise MissingCheckpointError(f"there is no checkpoint at {path}.")


def _put_aside(path: Path) -> list[Path]:
    try:
        return _leftovers(path, "replaced")
    except (FileNotFoundError, NotADirectoryError):
        return []


def _open_files(place: Path) -> _Inputs:
    """Open all files before any is read: a folder that is then replaced is still read whole."""
    files: _Inputs = {}
    folder = _open_folder(place)
    try:
        for name in _FILES:
            files[name] = _open_file(place, folder, name)
    except BaseException as error:
        for file in files.values():
            os.close(file.descriptor)
        if not isinstance(error, FileNotFoundError):
            raise
        if folder is not None and not _is_still(place, folder):
            raise _Moved from None
        raise DamagedCheckpointError(f"{place / name} is missing: no whole checkpoint.") from None
    finally:
        if folder is not None:
            os.close(folder)
    return files


def _open_folder(place: Path) -> int | None:
    """The folder itself, whatever its next name; None where the system has no such thing."""
    try:
        if os.open in os.supports_dir_fd:
            return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _Moved from None
    except NotADirectoryError:
        raise DamagedCheckpointError(f"{place} is no folder, so no checkpoint.") from None
    return None


def _open_file(place: Path, folder: int | None, name: str) -> _Input:
    path = place / name
    try:
        where = path if folder is None else name
        descriptor = os.open(where, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DamagedCheckpointError(
                f"{path} is a symbolic link, and a checkpoint has its files in it."
            ) from None
        error.filename = str(path)
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise DamagedCheckpointError(f"{path} is no regular file.")
    return _Input(str(path), descriptor, status.st_size)


# A link is not followed, and a pipe does not make us wait.
_BINARY = getattr(os, "O_BINARY", 0)
_READ = (
    os.O_RDONLY
    | _BINARY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def _candidates(root: Path) -> list[Path]:
    """The folders in a folder that are checkpoints, or should be."""
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        raise MissingCheckpointError(f"there is no folder {root}.") from None
    except OSError as error:
        raise UnreadableCheckpointError(f"{root} can't be read: {error.strerror}.") from error
    candidates: dict[Path, None] = {}
    for name in names:
        path = root / name
        if match := _PUT_ASIDE.fullmatch(name):  # stands for its target, while that is missing
            candidates.setdefault(root / match[1], None)
        elif not name.startswith(".") and _looks_like_one(path):
            candidates[path] = None
    return list(candidates)


_PUT_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{16}\.replaced")


def _looks_like_one(path: Path) -> bool:
    try:
        return not path.is_symlink() and any(os.path.lexists(path / name) for name in _FILES)
    except OSError:
        return False
