"""Read the `.metadata` file of torch's distributed checkpoints, which is a pickle.

No code is executed: the few names that the file may contain stand for the classes of this module,
which only keep the values, and any other name or instruction is an error.
"""

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from pickletools import genops
from typing import Any

import attrs
import torch

from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.folders import is_plain_name
from composable.checkpoint.layout import Region, cover

__all__ = ["METADATA", "Entry", "Piece", "parse_metadata"]

METADATA = ".metadata"


@attrs.frozen
class Piece:
    """Some bytes of a file, in the format of `torch.save`."""

    file: str
    offset: int
    length: int


@attrs.frozen
class Entry:
    """A tensor or another object of a checkpoint.

    Args:
        path: Its place in the state: keys of dictionaries and indices of lists.
        dtype: The dtype of a tensor, or None for another object.
        shape: The shape of a tensor.
        pieces: The blocks of a tensor, or one without a region.
    """

    path: tuple[str | int, ...]
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    pieces: tuple[tuple[Region | None, Piece], ...]


def parse_metadata(raw: bytes, where: Path) -> dict[str, Entry]:
    """Return the entries of a checkpoint by name.

    Raises:
        DamagedCheckpointError: The file is not the metadata of a checkpoint.
        UnreadableCheckpointError: The checkpoint is compressed.
    """
    try:
        _check_instructions(raw)
        metadata = _Unpickler(io.BytesIO(raw)).load()
        return _entries(metadata)
    except UnreadableCheckpointError:
        raise
    except Exception as error:  # an unpickler raises any type
        raise DamagedCheckpointError(
            f"{where} is not the metadata of a distributed checkpoint: {str(error)[:200]}."
        ) from error


# ---------------------------------------------------------------------------------------------
# Unpickling

_INSTRUCTIONS = frozenset(
    [
        *["PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET"],
        *["LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"],
        *["SHORT_BINUNICODE", "BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"],
        *["EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"],
        *["GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD"],
    ]
)


def _check_instructions(raw: bytes) -> None:
    for opcode, argument, _ in genops(raw):
        if opcode.name not in _INSTRUCTIONS:
            raise ValueError(f"it has the instruction {opcode.name}")
        # The unpickler allocates a table of this size.
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > len(raw):
            raise ValueError("it has a number that is too large")


class _Record:
    """Keeps the state of an object, as attributes or as one value."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.values = state


class _Index(_Record):
    """The name of an object, or of a block of a tensor; a key of a dictionary."""

    fqn: str
    offset: Any = None

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Index) and (self.fqn, self.offset) == (other.fqn, other.offset)


class _Tensor(_Record):
    properties: Any
    size: Any
    chunks: Any


class _Bytes(_Record):
    pass


class _Storage(_Record):
    relative_path: Any
    offset: Any
    length: Any
    transform_descriptors: Any = None


_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_CLASSES: Mapping[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): _Record,
    (_METADATA, "TensorStorageMetadata"): _Tensor,
    (_METADATA, "BytesStorageMetadata"): _Bytes,
    (_METADATA, "ChunkStorageMetadata"): _Record,
    (_METADATA, "TensorProperties"): _Record,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "StorageMeta"): _Record,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Record,
    (_FILES, "_StorageInfo"): _Storage,
    (_FILES, "_StoragePrefix"): _Record,
    ("torch.serialization", "_get_layout"): _Record,
    ("torch", "Size"): tuple,
    ("pathlib", "Path"): _Record,
    ("pathlib", "PosixPath"): _Record,
    ("pathlib", "WindowsPath"): _Record,
    ("pathlib._local", "PosixPath"): _Record,
    ("pathlib._local", "WindowsPath"): _Record,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        dtype = vars(torch).get(name) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise ValueError(f"it contains {module}.{name}")


# ---------------------------------------------------------------------------------------------
# Checking


def _entries(metadata: Any) -> dict[str, Entry]:
    names, places = metadata.state_dict_metadata, metadata.planner_data or {}
    stored: Mapping[_Index, _Storage] = metadata.storage_data
    entries = {}
    for name, kind in names.items():
        if not isinstance(name, str):
            raise ValueError("a name is not a string")
        path = tuple(places.get(name, (name,)))
        if not path or not all(_is_step(step, len(names)) for step in path):
            raise ValueError(f"{name[:80]!r} has no valid path")
        if isinstance(kind, _Tensor):
            entries[name] = _tensor(name, kind, path, stored)
        else:
            key = _Index()
            key.fqn = name
            entries[name] = Entry(path, None, (), ((None, _piece(stored[key])),))
    return entries


def _tensor(
    name: str, kind: _Tensor, path: tuple[Any, ...], stored: Mapping[_Index, _Storage]
) -> Entry:
    dtype, shape = kind.properties.values[0], _counts(kind.size)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name[:80]!r} has no dtype")
    pieces = []
    for chunk in kind.chunks:
        region, key = Region(_counts(chunk.offsets), _counts(chunk.sizes)), _Index()
        if not region.count:  # of a process without a part, or of an empty tensor
            continue
        key.fqn, key.offset = name, region.offsets
        piece = _piece(stored[key])
        if region.count * dtype.itemsize > piece.length:
            raise ValueError(f"a block of {name[:80]!r} has too few bytes")
        pieces.append((region, piece))
    if math.prod(shape) and not cover(shape, [region for region, _ in pieces]):
        raise ValueError(f"the blocks of {name[:80]!r} overlap or leave a gap")
    return Entry(path, dtype, shape, tuple(pieces))


def _piece(info: _Storage) -> Piece:
    if info.transform_descriptors:
        kinds = str(info.transform_descriptors)[:80]
        raise UnreadableCheckpointError(
            f"the distributed checkpoint was written with the extensions {kinds}, which are not "
            "supported: save it without them."
        )
    if not is_plain_name(info.relative_path):
        raise ValueError(f"{str(info.relative_path)[:80]!r} is not the name of a file")
    offset, length = _counts((info.offset, info.length))
    return Piece(info.relative_path, offset, length)


def _is_step(step: Any, most: int) -> bool:
    return isinstance(step, str) or (type(step) is int and 0 <= step < most)


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{str(values)[:80]} are not sizes")
    return values
