"""Read the `.metadata` file of torch's distributed checkpoints, which is a pickle.

No code is executed, and the module `pickle` is not used. The classes that such a file may name are
not looked up: their objects only keep values. Any other name is an error.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from pickletools import genops
from typing import Any

import attrs
import torch

from composable._support.printable import shorten
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.manifest import is_plain_name
from composable.checkpoint.safetensors import MAX_DIMENSIONS, are_counts
from composable.checkpoint.shards import Region, cover

METADATA = ".metadata"


@attrs.frozen
class Name:
    """A class or a function, by its module and name."""

    path: str


@attrs.define(eq=False)
class Made:
    """What a class or a function returned; nothing was called."""

    by: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


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
        return _entries(_MetadataReader().read(raw))
    except UnreadableCheckpointError:
        raise
    except Exception as error:  # of any type, from values that are not as expected
        raise DamagedCheckpointError(
            f"{where} is not the metadata of a distributed checkpoint: {str(error)[:200]}."
        ) from error


_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_TENSOR, _SIZE = f"{_METADATA}.TensorStorageMetadata", "torch.Size"
_CLASSES = (
    *(f"{_METADATA}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *(f"{_METADATA}.{name}" for name in ("BytesStorageMetadata", "ChunkStorageMetadata")),
    *(f"{_METADATA}.{name}" for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    *(f"{_FILES}.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
    *("pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath"),
    *("pathlib._local.PosixPath", "pathlib._local.WindowsPath"),
    *(_TENSOR, _SIZE, "torch.serialization._get_layout"),
)


@attrs.define
class _MetadataReader:
    """Interprets the few instructions of a pickle that such a file has, and executes no code.

    Errors are a ValueError, or any other exception where a pickle takes values that it does not
    have.
    """

    stack: list[Any] = attrs.field(factory=list)
    marks: list[int] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def read(self, source: Any) -> Any:
        """Return the value of a pickle: bytes, or a file at its start, which is read to its end."""
        for opcode, argument, _ in genops(source):
            if opcode.name not in _STEPS:
                raise ValueError(f"it has the instruction {opcode.name}")
            _STEPS[opcode.name](self, argument)
        return self.pop(1)[0]

    def named(self, module: Any, name: Any) -> Name:
        """Return the name of one of the few classes that such a file has."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("the name of a class is not a string")
        found = Name(f"{module}.{name}")
        if found.path not in _CLASSES and _dtype(found) is None:
            raise ValueError(f"it contains {found.path[:160]}")
        return found

    def created(self, callee: Any, arguments: Any) -> Made:
        """Return what stands for the result of a class or a function."""
        if not (isinstance(callee, Name) and isinstance(arguments, tuple)):
            # The value is not printed: it may have exponentially many parts.
            raise ValueError("it calls a value that is not a function")
        return Made(callee.path, arguments)

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """Remove the last values, and return them."""
        if len(self.stack) < count:
            raise ValueError("it takes more values than it has")
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_marked(self) -> list[Any]:
        """Remove the values after the last mark, and return them."""
        return self.pop(len(self.stack) - self.marks.pop())

    def remember(self, number: Any) -> None:
        """Store the last value under a number."""
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        """Add items to the container that is the last value."""
        container = self.stack[-1]
        if isinstance(container, list):
            container.extend(items)
            return
        keys = items[::2]
        # An object has its identity as its hash; a hash of a tuple may take any time.
        if not isinstance(container, dict) or not all(isinstance(k, (str, Made)) for k in keys):
            raise ValueError("it adds an item to another value than a dictionary of names")
        container.update(zip(keys, items[1::2], strict=True))

    def set_state(self, _: Any) -> None:
        """Set the state of the last value but one to the last."""
        (state,) = self.pop(1)
        if not isinstance(self.stack[-1], Made):
            raise ValueError("it sets the state of a value that has none")
        self.stack[-1].state = state


_Step = Callable[[_MetadataReader, Any], None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda at, _: None),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), _MetadataReader.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda at, number: at.push(at.memo[number])),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _MetadataReader.push),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE"), _MetadataReader.push),
    "MARK": lambda at, _: at.marks.append(len(at.stack)),
    "NONE": lambda at, _: at.push(None),
    "NEWTRUE": lambda at, _: at.push(True),
    "NEWFALSE": lambda at, _: at.push(False),
    "EMPTY_TUPLE": lambda at, _: at.push(()),
    "TUPLE": lambda at, _: at.push(tuple(at.pop_marked())),
    "TUPLE1": lambda at, _: at.push(tuple(at.pop(1))),
    "TUPLE2": lambda at, _: at.push(tuple(at.pop(2))),
    "TUPLE3": lambda at, _: at.push(tuple(at.pop(3))),
    "EMPTY_LIST": lambda at, _: at.push([]),
    "APPEND": lambda at, _: at.extend(at.pop(1)),
    "APPENDS": lambda at, _: at.extend(at.pop_marked()),
    "EMPTY_DICT": lambda at, _: at.push({}),
    "SETITEM": lambda at, _: at.extend(at.pop(2)),
    "SETITEMS": lambda at, _: at.extend(at.pop_marked()),
    "GLOBAL": lambda at, words: at.push(at.named(*words.split(" "))),
    "STACK_GLOBAL": lambda at, _: at.push(at.named(*at.pop(2))),
    "NEWOBJ": lambda at, _: at.push(at.created(*at.pop(2))),
    "REDUCE": lambda at, _: at.push(at.created(*at.pop(2))),
    "BUILD": _MetadataReader.set_state,
}


def _dtype(name: Any) -> torch.dtype | None:
    module, _, last = name.path.rpartition(".") if isinstance(name, Name) else ("", "", "")
    dtype = vars(torch).get(last) if module == "torch" else None
    return dtype if isinstance(dtype, torch.dtype) else None


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
        if kind.by == _TENSOR:
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
    dtype, shape = _dtype(kind["properties"].state[0]), _counts(kind["size"])
    if dtype is None:
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
    if isinstance(values, Made) and values.by == _SIZE:
        values = tuple(*values.arguments)
    few = isinstance(values, tuple) and len(values) <= MAX_DIMENSIONS
    if not few or not are_counts(list(values)):
        raise ValueError(f"{shorten(values)} are not sizes")
    sizes: tuple[int, ...] = values
    return sizes
