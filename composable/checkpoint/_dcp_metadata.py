"""Read the `.metadata` file of torch's distributed checkpoints, which is a pickle.

No code is executed, and the module `pickle` is not used. The few instructions of such a file are
interpreted here. The names that it may contain stand for classes of this module, which only keep
values. Any other instruction or name is an error.
"""

import math
from collections.abc import Callable, Mapping
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
        return _entries(_Interpreter().run(raw))
    except UnreadableCheckpointError:
        raise
    except Exception as error:  # of any type, from values that are not as expected
        raise DamagedCheckpointError(
            f"{where} is not the metadata of a distributed checkpoint: {str(error)[:200]}."
        ) from error


# ---------------------------------------------------------------------------------------------
# The pickle


@attrs.define
class _Interpreter:
    """Builds the value of a pickle from the few instructions that such a file has."""

    stack: list[Any] = attrs.field(factory=list)
    marks: list[int] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def run(self, raw: bytes) -> Any:
        """Return the value."""
        for opcode, argument, _ in genops(raw):
            if opcode.name not in _STEPS:
                raise ValueError(f"it has the instruction {opcode.name}")
            _STEPS[opcode.name](self, argument)
        return self.pop(1)[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes more values than it has")
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_marked(self) -> list[Any]:
        return self.pop(len(self.stack) - self.marks.pop())

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def remember(self, number: Any) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        _extend(self.stack[-1], items)

    def create(self, _: Any) -> None:
        self.push(_new(*self.pop(2)))

    def build(self, _: Any) -> None:
        (state,) = self.pop(1)
        _keep(self.stack[-1], state)


_Step = Callable[[_Interpreter, Any], None]
_STEPS: dict[str, _Step] = {
    "PROTO": lambda at, _: None,
    "FRAME": lambda at, _: None,
    "STOP": lambda at, _: None,
    "MARK": _Interpreter.mark,
    "MEMOIZE": _Interpreter.remember,
    "BINPUT": _Interpreter.remember,
    "LONG_BINPUT": _Interpreter.remember,
    "BINGET": lambda at, number: at.push(at.memo[number]),
    "LONG_BINGET": lambda at, number: at.push(at.memo[number]),
    "NONE": lambda at, _: at.push(None),
    "NEWTRUE": lambda at, _: at.push(True),
    "NEWFALSE": lambda at, _: at.push(False),
    "BININT": _Interpreter.push,
    "BININT1": _Interpreter.push,
    "BININT2": _Interpreter.push,
    "LONG1": _Interpreter.push,
    "SHORT_BINUNICODE": _Interpreter.push,
    "BINUNICODE": _Interpreter.push,
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
    "GLOBAL": lambda at, words: at.push(_named(*words.split(" "))),
    "STACK_GLOBAL": lambda at, _: at.push(_named(*at.pop(2))),
    "NEWOBJ": _Interpreter.create,
    "REDUCE": _Interpreter.create,
    "BUILD": _Interpreter.build,
}


def _extend(container: Any, items: list[Any]) -> None:
    if isinstance(container, list):
        container.extend(items)
        return
    if not isinstance(container, dict):
        raise ValueError("it adds items to a value that is not a container")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, (str, _Index)):
            raise ValueError("a key is not a name")
        container[key] = value


def _named(module: Any, name: Any) -> Any:
    if (module, name) in _CLASSES:
        return _CLASSES[module, name]
    dtype = vars(torch).get(name) if module == "torch" else None
    if isinstance(dtype, torch.dtype):
        return dtype
    raise ValueError(f"it contains {module}.{name}")


def _new(kind: Any, arguments: Any) -> Any:
    if not isinstance(kind, type) or not isinstance(arguments, tuple):
        raise ValueError("it creates a value of no class")
    return kind(*arguments)  # one of those that `_named` returns


def _keep(record: Any, state: Any) -> None:
    if not isinstance(record, _Record):
        raise ValueError("it sets the state of a value that has none")
    record.keep(state)


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
