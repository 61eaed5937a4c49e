"""Read the `.metadata` file of torch's distributed checkpoints, which is a pickle.

No code of the file is executed. The classes that such a file may name are not looked up: their
objects only keep values. Any other name is an error. A forged file can take long, or all memory.
"""

import io
import math
from collections.abc import Mapping
from pathlib import Path
from pickle import Unpickler
from typing import Any

import attrs
import torch

from composable._support.printable import shorten
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.manifest import is_plain_name
from composable.checkpoint.safetensors import MAX_DIMENSIONS, are_counts
from composable.checkpoint.shards import Region, cover

METADATA = ".metadata"


class Made:
    """Stands for an object of one of the classes of such a file, and keeps its state."""

    state: Any = None

    def __init__(self, *_: Any) -> None: ...
    def __setstate__(self, state: Any) -> None:
        self.state = state


@attrs.frozen
class Piece:
    """Some bytes of a file, in the format of `torch.save`."""

    file: str
    offset: int
    length: int


@attrs.frozen
class DCPEntry:
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


def parse_metadata(raw: bytes, where: Path) -> dict[str, DCPEntry]:
    """Return the entries of a checkpoint by name.

    Raises:
        DamagedCheckpointError: The file is not the metadata of a checkpoint.
        UnreadableCheckpointError: The checkpoint is compressed.
    """
    try:
        return _entries(_MetadataUnpickler(io.BytesIO(raw)).load())
    except UnreadableCheckpointError:
        raise
    except Exception as error:  # of any type, from values that are not as expected
        raise DamagedCheckpointError(
            f"{where} is not the metadata of a distributed checkpoint: {str(error)[:200]}."
        ) from error


_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_TENSOR = f"{_METADATA}.TensorStorageMetadata"
_MADE: dict[str, type[Made]] = {
    path: type(path, (Made,), {})
    for path in (
        *(f"{_METADATA}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta")),
        *(f"{_METADATA}.{name}" for name in ("BytesStorageMetadata", "ChunkStorageMetadata")),
        *(f"{_METADATA}.{name}" for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
        *(f"{_FILES}.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
        *("pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath"),
        *("pathlib._local.PosixPath", "pathlib._local.WindowsPath"),
        *(_TENSOR, "torch.serialization._get_layout"),
    )
}
"""What stands for each class, and for the function that returns a layout."""


class _MetadataUnpickler(Unpickler):
    """Knows the few names that such a file has, and calls nothing that belongs to them."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class; `torch.Size` and dtypes are themselves."""
        if (path := f"{module}.{name}") in _MADE:
            return _MADE[path]
        found = vars(torch).get(name) if module == "torch" else None
        if found is torch.Size or isinstance(found, torch.dtype):
            return found
        raise ValueError(f"it contains {path[:160]}")


def _entries(metadata: Made) -> dict[str, DCPEntry]:
    names, places = metadata.state["state_dict_metadata"], metadata.state["planner_data"] or {}
    stored = {_place(key): info for key, info in metadata.state["storage_data"].items()}
    entries = {}
    for name, kind in names.items():
        if not isinstance(name, str):
            raise ValueError("a name is not a string")
        path = tuple(places.get(name, (name,)))
        valid = (
            isinstance(step, str) or (type(step) is int and 0 <= step < len(names)) for step in path
        )
        if not 0 < len(path) <= MAX_DIMENSIONS or not all(valid):
            raise ValueError(f"{name[:80]!r} has no valid path")
        if isinstance(kind, _MADE[_TENSOR]):
            entries[name] = _tensor(name, kind.state, path, stored)
        else:
            entries[name] = DCPEntry(path, None, (), ((None, _piece(stored[name, None].state)),))
    return entries


Stored = Mapping[tuple[str, tuple[int, ...] | None], Made]


def _place(index: Made) -> tuple[str, tuple[int, ...] | None]:
    """Return the name of an object, and where a block of a tensor begins."""
    name, offset = index.state["fqn"], index.state.get("offset")
    if not isinstance(name, str):
        raise ValueError("the name of an entry is not a string")
    return name, None if offset is None else _counts(offset)


def _tensor(name: str, kind: Mapping[str, Any], path: tuple[Any, ...], stored: Stored) -> DCPEntry:
    dtype, shape = kind["properties"].state[0], _counts(kind["size"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name[:80]!r} has no dtype")
    pieces = []
    for chunk in kind["chunks"]:
        region = Region(_counts(chunk.state["offsets"]), _counts(chunk.state["sizes"]))
        if not region.count:  # of a process without a part, or of an empty tensor
            continue
        piece = _piece(stored[name, region.offsets].state)
        if region.count * dtype.itemsize > piece.length:
            raise ValueError(f"a block of {name[:80]!r} has too few bytes")
        pieces.append((region, piece))
    if math.prod(shape) and not cover(shape, [region for region, _ in pieces]):
        raise ValueError(f"the blocks of {name[:80]!r} overlap or leave a gap")
    return DCPEntry(path, dtype, shape, tuple(pieces))


def _piece(info: Mapping[str, Any]) -> Piece:
    if extensions := info.get("transform_descriptors"):
        raise UnreadableCheckpointError(
            f"the distributed checkpoint was written with the extensions {shorten(extensions, 80)}"
            ", which are not supported: save it without them."
        )
    name = info["relative_path"]
    if not is_plain_name(name):
        raise ValueError(f"{shorten(name, 80)} is not the name of a file")
    return Piece(name, *_counts((info["offset"], info["length"])))


def _counts(values: Any) -> tuple[int, ...]:
    few = isinstance(values, tuple) and len(values) <= MAX_DIMENSIONS
    if not few or not are_counts(list(values)):
        raise ValueError(f"{shorten(values)} are not sizes")
    sizes: tuple[int, ...] = values
    return sizes
