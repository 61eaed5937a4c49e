"""Open the files of a checkpoint, all from the same version, and read their tensors by blocks."""

import errno
import math
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.checks import StorageError
from composable._support.strict_json import JSON, InvalidJSONError, load
from composable.checkpoint.atomic import find_replaced, is_still
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
    Manifest,
    parse_manifest,
)
from composable.checkpoint.safetensors import Entry, allocate, chunks_of, fill, read_header
from composable.checkpoint.shards import Region, cover
from composable.core.stateful import StructureError

_CHUNK = 1 << 22
_ATTEMPTS = 20  # retried only if a writer replaced the checkpoint in the meantime


@contextmanager
def readable(path: Path, missing: CheckpointError | None = None) -> Iterator[None]:
    """Convert errors of the system, of JSON and of its structure to errors of checkpoints.

    Args:
        path: What is read.
        missing: The error of a file that does not exist.
    """
    try:
        yield
    except (InvalidJSONError, StructureError) as error:
        raise DamagedCheckpointError(str(error)) from None
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        if missing is not None and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise missing from None
        raise UnreadableCheckpointError(
            f"{error.filename or path} cannot be read: {error.strerror or error}."
        ) from error


@contextmanager
def reading_from_store() -> Iterator[None]:
    """Convert errors of an object store to errors of checkpoints."""
    try:
        yield
    except StorageError as error:
        raise UnreadableCheckpointError(str(error)) from None
    except FileNotFoundError as error:
        if isinstance(error, CheckpointError):
            raise
        raise MissingCheckpointError(str(error)) from None


# --- one file


@attrs.define
class Input:
    """A file that is hashed while it is read, until its position is changed."""

    where: str
    descriptor: int
    size: int
    recorded: str = ""
    """The hash that the manifest records."""
    hash: Any = attrs.field(factory=sha256)

    def __call__(self, buffer: memoryview) -> int:
        count = _read_into(self.descriptor, buffer)
        if self.hash is not None:
            self.hash.update(buffer[:count])
        return count

    def skip(self, count: int) -> None:
        """Skip a number of bytes, which are hashed too if the file is."""
        if self.hash is None:
            os.lseek(self.descriptor, count, os.SEEK_CUR)
            return
        buffer = memoryview(bytearray(min(count, _CHUNK)))
        while count:
            chunk = buffer[: min(count, _CHUNK)]
            fill(self, chunk, self.where)
            count -= len(chunk)

    def seek(self, position: int) -> None:
        """Go to a position in the file, which is not hashed any more."""
        self.hash = None
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

    def check(self) -> None:
        """Compare the hash of the bytes read with the manifest."""
        if self.hash.hexdigest() != self.recorded:
            raise DamagedCheckpointError(
                f"{self.where} is damaged: its sha256 is {self.hash.hexdigest()[:16]}..., but "
                f"{MANIFEST} records {self.recorded[:16]}..."
            )


def _read_into(descriptor: int, buffer: memoryview) -> int:
    if hasattr(os, "readv"):
        return os.readv(descriptor, [buffer])
    data = os.read(descriptor, len(buffer))  # Windows
    buffer[: len(data)] = data
    return len(data)


# --- files of tensors


class TensorFiles:
    """Open files that have tensors, or blocks of them.

    Args:
        files: The files by name, at their start.

    Raises:
        DamagedCheckpointError: One is damaged, or their blocks of a tensor do not cover it.
    """

    def __init__(self, files: Mapping[str, Input]) -> None:
        self.files = files
        self.entries = {n: read_header(file, file.size, file.where) for n, file in files.items()}
        """The entries of each file, in the order of their bytes."""
        self.blocks: dict[str, list[tuple[Input, Entry]]] = {}
        """The blocks of each tensor, with their files."""
        for name, entries in self.entries.items():
            for entry in entries:
                self.blocks.setdefault(entry.name, []).append((files[name], entry))
        self.tensors = {name: _whole(name, blocks) for name, blocks in self.blocks.items()}
        """The whole tensors by name, on the meta device, without values."""

    def read(
        self, regions: Mapping[str, Region], *, verify: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Read regions of tensors by name, and verify each file that has a part of one.

        Args:
            regions: What to read.
            verify: The names of files to verify even if they have no part.
        """
        tensors = {name: self._allocate(name, region) for name, region in regions.items()}
        for name, file in self.files.items():
            parts = {
                entry.name: part
                for entry in self.entries[name]
                if entry.name in regions and (part := regions[entry.name].overlap(entry.block))
            }
            if not (parts or name in verify):
                continue
            for entry in self.entries[name]:
                if entry.name in parts:
                    index = parts[entry.name].within(regions[entry.name])
                    _read_part(file, parts[entry.name], entry.block, tensors[entry.name][index])
                else:
                    file.skip(entry.size)
            file.check()
        return tensors

    def fetch(self, name: str, region: Region | None = None) -> Tensor:
        """Read a tensor, or a region of it; nothing is verified, and nothing afterwards."""
        wanted = Region.whole(self.tensors[name].shape) if region is None else region
        tensor = self._allocate(name, wanted)
        for file, entry in self.blocks[name]:
            if part := wanted.overlap(entry.block):
                with readable(Path(file.where)):
                    file.seek(entry.start)
                    _read_part(file, part, entry.block, tensor[part.within(wanted)])
        return tensor

    def _allocate(self, name: str, region: Region) -> Tensor:
        where = self.blocks[name][0][0].where
        return allocate(name, region.sizes, self.tensors[name].dtype, where)


def _whole(name: str, blocks: list[tuple[Input, Entry]]) -> Tensor:
    file, first = blocks[0]
    regions = [entry.block for _, entry in blocks]
    shape = tuple(map(max, zip(*(region.ends for region in regions), strict=False)))
    if any(entry.dtype != first.dtype for _, entry in blocks) or not cover(shape, regions):
        files = ", ".join(one.where for one, _ in blocks[:4]) + (", ..." if blocks[4:] else "")
        raise DamagedCheckpointError(
            f"tensor {name[:200]!r} is not divided into its blocks: they overlap, leave a gap, or "
            f"differ in dtype, in {files}."
        )
    return allocate(name, shape, first.dtype, file.where, "meta")


def _read_part(file: Input, part: Region, block: Region, target: Tensor) -> None:
    """Read a part of the block that begins at the position of the file, and skip the rest."""
    # Only the rows of the first dimension that have a part of the region are kept in memory.
    rows = Region(part.offsets[:1] + block.offsets[1:], part.sizes[:1] + block.sizes[1:])
    size = target.element_size()
    row = math.prod(block.sizes[1:])
    before = (part.offsets[0] - block.offsets[0]) * row if part.sizes else 0
    file.skip(before * size)
    straight = rows == part and target.is_contiguous()
    buffer = target if straight else torch.empty(rows.sizes, dtype=target.dtype)
    for chunk in chunks_of(buffer):
        fill(file, chunk, file.where)
    if not straight:
        target.copy_(buffer[part.within(rows)])
    file.skip((block.count - before - rows.count) * size)


# --- a checkpoint


@attrs.frozen(eq=False)
class Opened:
    """The open files of a checkpoint, of the sizes that the manifest records."""

    manifest: Manifest
    files: Mapping[str, Input]

    def contents(self) -> tuple[JSON, TensorFiles]:
        """Read and verify the state, and the headers of the files of tensors."""
        state = self.files[STATE]
        raw = state.all(MAX_STATE)
        state.check()
        names = self.manifest.tensor_files
        return load(raw, state.where), TensorFiles({name: self.files[name] for name in names})


class _Moved(Exception):
    """The folder was replaced while its files were being opened."""


@contextmanager
def reading(path: Path) -> Iterator[Opened]:
    """Open the files of a checkpoint, all from the same version of it."""
    with readable(path), ExitStack() as stack:
        yield _open(path, stack)


def _open(path: Path, stack: ExitStack) -> Opened:
    for _ in range(_ATTEMPTS):
        # Between the two renames of a writer, the checkpoint is the replaced one.
        for place in [path] if os.path.lexists(path) else find_replaced(path):
            with suppress(_Moved), ExitStack() as files:
                opened = _open_files(place, files, aside=place != path)
                stack.push(files.pop_all())
                return opened
    raise MissingCheckpointError(f"no checkpoint at {path}.")


def _open_files(place: Path, stack: ExitStack, *, aside: bool) -> Opened:
    """Open all files before reading any: a folder that is replaced later is still read whole."""
    folder, name = _open_folder(place), MANIFEST
    try:
        file = _open_file(place, folder, name, stack)
        manifest = parse_manifest(file.all(MAX_MANIFEST), file.where)
        files = {}
        for name in manifest.files:
            files[name] = _open_file(place, folder, name, stack)
    except FileNotFoundError:
        # A folder that was put aside is deleted when the new one is in its place.
        if aside or (folder is not None and not is_still(place, folder)):
            raise _Moved from None
        raise DamagedCheckpointError(f"{place / name} is missing: incomplete checkpoint.") from None
    finally:
        if folder is not None:
            os.close(folder)
    for name, record in manifest.files.items():
        file = files[name]
        if file.size != record.size:
            raise DamagedCheckpointError(
                f"{file.where} has {file.size} bytes, but {MANIFEST} records {record.size}: it is "
                "truncated, or belongs to another checkpoint."
            )
        file.recorded = record.sha256
    return Opened(manifest, files)


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


def _open_file(place: Path, folder: int | None, name: str, stack: ExitStack) -> Input:
    path = place / name
    try:
        descriptor = os.open(path if folder is None else name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DamagedCheckpointError(
                f"{path} is a symbolic link; the files of a checkpoint must not be links."
            ) from None
        error.filename = str(path)
        raise
    stack.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
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
