"""Read the `.metadata` file of torch's distributed checkpoints, which is a pickle.

No code is executed, and the module `pickle` is not used. The names that such a file may contain
stand for classes of this module, which only keep values. Any other name is an error.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from composable.checkpoint._pickle import PickleReader
from composable.checkpoint._safetensors import MAX_DIMENSIONS, are_counts
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.manifest import is_plain_name
from composable.checkpoint.shards import Region, cover
from composable.core._printable import shorten

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
        return _entries(_MetadataReader().read(raw))
    except UnreadableCheckpointError:
        raise
    except Exception as error:  # of any type, from values that are not as expected
        raise DamagedCheckpointError(
            f"{where} is not the metadata of a distributed checkpoint: {str(error)[:200]}."
        ) from error


# ---------------------------------------------------------------------------------------------
# The pickle


@attrs.define
class _MetadataReader(PickleReader):
    """Keeps the values of the few classes that such a file has."""

    def named(self, module: Any, name: Any) -> Any:
        """Return the class of this module that stands for one of torch."""
        return _named(module, name)

    def created(self, callee: Any, arguments: Any) -> Any:
        """Create a record."""
        if not isinstance(callee, type) or not isinstance(arguments, tuple):
            raise ValueError("it creates a value of no class")
        return callee(*arguments)  # one of those that `_named` returns

    def build(self, value: Any, state: Any) -> None:
        """Set the state of a record."""
        if not isinstance(value, _Record):
            raise ValueError("it sets the state of a value that has none")
        value.keep(state)

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        """Set an item, by a name."""
        if not isinstance(container, dict):
            raise ValueError("it adds items to a value that is not a container")
        if not isinstance(key, (str, _Index)):
            raise ValueError("a key is not a name")
        container[key] = value


def _named(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it names a class by a value that is not a string")
    if (module, name) in _CLASSES:
        return _CLASSES[module, name]
    dtype = vars(torch).get(name) if module == "torch" else None
    if isinstance(dtype, torch.dtype):
        return dtype
    raise ValueError(f"it contains {module[:80]}.{name[:80]}")


class _Record:
    """Keeps the state of an object, as attributes or as one value."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def keep(self, state: Any) -> None:
        """Set the state."""
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.values = state


class _Index(_Record):
    """The name of an object, or of a block of a tensor; a key of a dictionary."""

    fqn: str
    offset: Any = None

    def __hash__(self) -> int:
        # A tuple in a tuple in a tuple ... has few bytes and exponentially many values to hash.
        if not isinstance(self.fqn, str):
            raise ValueError("the name of an entry is not a string")
        if self.offset is not None:
            _counts(self.offset)
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
        if not 0 < len(path) <= MAX_DIMENSIONS or not all(
            _is_step(step, len(names)) for step in path
        ):
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
        kinds = shorten(info.transform_descriptors, 80)
        raise UnreadableCheckpointError(
            f"the distributed checkpoint was written with the extensions {kinds}, which are not "
            "supported: save it without them."
        )
    if not is_plain_name(info.relative_path):
        raise ValueError(f"{shorten(info.relative_path, 80)} is not the name of a file")
    offset, length = _counts((info.offset, info.length))
    return Piece(info.relative_path, offset, length)


def _is_step(step: Any, most: int) -> bool:
    return isinstance(step, str) or (type(step) is int and 0 <= step < most)


def _counts(values: Any) -> tuple[int, ...]:
    few = isinstance(values, tuple) and len(values) <= MAX_DIMENSIONS
    if not few or not are_counts(list(values)):
        raise ValueError(f"{shorten(values)} are not sizes")
    sizes: tuple[int, ...] = values
    return sizes
