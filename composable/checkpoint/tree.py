"""Convert trees of plain containers and tensors to named tensors and JSON, and back.

JSON values (None, booleans, integers, finite floats, strings, lists, and dictionaries with string
keys) are written as they are. Any other value is a mapping with one key that begins with `$` and
names its type: `{"$tuple": [1, 2]}`, `{"$tensor": "model/0.weight"}`. The set of types is fixed;
`$json` is the one for JSON that is returned as it is.
No attribute or import is looked up by a name from the file, so loading never executes code.
"""

import base64
import math
import struct
from collections import deque
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

import attrs
import torch
from torch import Tensor, nn

from composable._support import strict_json
from composable._support.printable import shorten
from composable._support.strict_json import JSON, MAX_INTEGER
from composable.checkpoint.errors import CheckpointError, DamagedCheckpointError, UnsavableError
from composable.checkpoint.safetensors import DTYPES
from composable.checkpoint.shards import is_dtensor, local_of
from composable.core.key import Key
from composable.core.stateful import Count, Kind, check_type, has_form, is_count
from composable.core.time import Time, Timestamp

_MAX_DEPTH = 64
_MAX_BITS = 1 << 16
_STORABLE = frozenset(DTYPES.values())
_TORCH_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}

_Path = tuple[Any, ...]
_NO_PREFIXES: Mapping[_Path, str] = MappingProxyType({})


RUN: Mapping[_Path, str] = MappingProxyType(
    {
        ("state", "model", "weights"): "model.",
        ("state", "loss_fn", "weights"): "loss_fn.",
        ("state", "raw", "model"): "raw.",
        ("state", "raw", "loss_fn"): "raw_loss_fn.",
    }
)
"""How the names of the weights of a run begin, by their paths: `model.` for the evaluated weights,
and `raw.` for the trained ones, where they differ."""


def pack(tree: Any, prefixes: Mapping[_Path, str] = _NO_PREFIXES) -> tuple[dict[str, Tensor], JSON]:
    """Split a tree into its tensors, by name, and JSON for the rest.

    A tree may contain dictionaries, lists, tuples, sets, frozensets and deques; None, booleans,
    numbers, strings, bytes and fractions; tensors, `torch.Size`, dtypes and devices; and `Time`,
    `Timestamp` and `Key`. `unpack` returns a bit-identical tree, with two exceptions: every mapping
    (an `OrderedDict`, a `Counter`, a read-only view) becomes a dictionary, and a parameter becomes
    a tensor that requires no gradient.

    A tensor that occurs twice (the same elements of the same storage) is saved once, and is shared
    again after loading. Nothing is copied: the tensors share their memory with the tree, detached.
    A `DTensor` stays one, and `write` saves the part of each process.

    Args:
        tree: The tree to split. The keys of dictionaries may be any plain values.
        prefixes: How the names of tensors begin that are entries of the mapping at a path.

    Returns:
        The tensors by name (otherwise their path in the tree, such as
        "optimizers/0/state/3/exp_avg"), and the rest in a form that `json.dumps` accepts.

    Raises:
        UnsavableError: A value has another type, or a container contains itself. The message names
            its path.

    Example:
        >>> from composable.checkpoint import pack, unpack
        >>> tensors, data = pack({"model": {"weight": torch.ones(2)}, "betas": (0.9, 0.99)})
        >>> data
        {'model': {'weight': {'$tensor': 'model/weight'}}, 'betas': {'$tuple': [0.9, 0.99]}}
        >>> unpack(tensors, data)
        {'model': {'weight': tensor([1., 1.])}, 'betas': (0.9, 0.99)}
    """
    packer = _Packer(prefixes)
    data = packer.pack(tree, ())
    return packer.tensors, data


def unpack(tensors: Mapping[str, Tensor], data: JSON) -> Any:
    """Rebuild a tree from the results of `pack`.

    Args:
        tensors: The tensors by name. Each must be referenced in `data`.
        data: The JSON from `pack` or from a file.

    Returns:
        A tree of new containers with the given tensors.

    Raises:
        DamagedCheckpointError: `data` is not a result of `pack`, or a tensor is missing or
            unexpected. The message names the path.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors={tensors!r} must be a mapping of names to tensors.")
    unpacker = _Unpacker(tensors)
    tree = unpacker.unpack(data, ())
    if unexpected := sorted(tensors.keys() - unpacker.used):
        raise DamagedCheckpointError(
            f"the state does not reference the tensors {listed(unexpected)}."
        )
    return tree


# ---------------------------------------------------------------------------------------------
# Packing


@attrs.define
class _Packer:
    _prefixes: Mapping[_Path, str]
    tensors: dict[str, Tensor] = attrs.field(factory=dict)
    _names: dict[Any, str] = attrs.field(factory=dict)
    """The names of the tensors packed so far, by identity."""
    _open: set[int] = attrs.field(factory=set)
    """The ids of the containers around the value that is being packed."""

    def pack(self, value: Any, path: _Path) -> JSON:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if abs(value) <= MAX_INTEGER else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if kind is str:
            return (
                value
                if strict_json.is_text(value)
                else {"$str": _text(value.encode("utf-8", "surrogatepass"))}
            )
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if kind in _ATOMS:
            return self._atom(value, path)
        if isinstance(value, (dict, MappingProxyType)) or kind in _CONTAINERS:
            return self._container(value, path)
        raise UnsavableError(
            f"{format_path(path)} has type {_type_name(value)}, which cannot be saved: use plain "
            "containers, numbers, strings and tensors."
        )

    def _atom(self, value: Any, path: _Path) -> JSON:
        tag, disassemble, *_ = _ATOMS[type(value)]
        try:
            return {tag: self.pack(disassemble(value), path)}
        except (ValueError, AttributeError) as error:
            raise UnsavableError(f"{format_path(path)} cannot be saved: {error}") from None

    def _container(self, value: Any, path: _Path) -> JSON:
        if id(value) in self._open:
            raise UnsavableError(f"{format_path(path)} contains itself, which is not supported.")
        if len(path) >= _MAX_DEPTH:
            raise UnsavableError(
                f"{format_path(path[:4])}/... is nested more than {_MAX_DEPTH} levels deep: "
                "flatten it."
            )
        self._open.add(id(value))
        try:
            if isinstance(value, (dict, MappingProxyType)):
                return self._mapping(value, path)
            if type(value) in (set, frozenset):
                members = [self._hashable(member, path) for member in value]
                # The order of a set of strings differs between processes.
                return {_CONTAINERS[type(value)]: sorted(members, key=strict_json.dump)}
            items = [self.pack(item, (*path, index)) for index, item in enumerate(value)]
        finally:
            self._open.remove(id(value))
        if type(value) is list:
            return items
        if type(value) is deque:
            return {"$deque": [value.maxlen, items]}
        return {_CONTAINERS[type(value)]: items}

    def _mapping(self, mapping: Mapping[Any, Any], path: _Path) -> JSON:
        if all(map(_is_plain_key, mapping)):
            return {key: self.pack(value, (*path, key)) for key, value in mapping.items()}
        return {
            "$dict": [
                [self._hashable(key, path), self.pack(value, (*path, key))]
                for key, value in mapping.items()
            ]
        }

    def _hashable(self, value: Any, path: _Path) -> JSON:
        before = len(self._names)
        packed = self.pack(value, (*path, "a key or member"))
        if isinstance(value, Tensor) or len(self._names) != before:
            raise UnsavableError(
                f"{format_path(path)} contains a tensor as a key or set member, which cannot be "
                "looked up after loading: use a string or a number."
            )
        return packed

    def _tensor(self, tensor: Tensor, path: _Path) -> JSON:
        if fault := _fault(tensor):
            raise UnsavableError(f"{format_path(path)} is a tensor that {fault}.")
        identity: Any = id(tensor)  # empty tensors may share one null address
        tensor = tensor.detach()
        node: dict[str, JSON] = {}
        if tensor.is_complex() and tensor.dtype not in _STORABLE:
            tensor, node["complex"] = torch.view_as_real(tensor.resolve_conj()), True
        if order := _order(tensor):
            node["order"] = order
        if tensor.numel():
            identity = identity_of(tensor)
        if identity not in self._names:
            name = self._name(path)
            self._names[identity], self.tensors[name] = name, tensor
        return {"$tensor": self._names[identity], **node}

    def _name(self, path: _Path) -> str:
        """Turn a path into a readable, unique name."""
        if (prefix := self._prefixes.get(path[:-1])) is not None:
            name = prefix + _escaped(path[-1])
        else:
            name = "/".join(map(_escaped, path)) or "tensor"
        if name.startswith("__"):  # reserved by the format
            name = f"%5F{name[1:]}"
        unique, count = name, 1
        while unique in self.tensors:  # the keys 3 and "3", say
            count += 1
            unique = f"{name}~{count}"
        return unique


def _fault(tensor: Tensor) -> str | None:
    """Return why a tensor cannot be saved, or None."""
    if is_dtensor(tensor):
        return _fault(local_of(tensor))
    if type(tensor) not in (Tensor, nn.Parameter):
        return f"has type {_type_name(tensor)}: convert it to a plain tensor"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}: use to_dense()"
    if tensor.is_meta:
        return "is on the meta device and has no elements to save"
    if tensor.dtype not in _STORABLE and not tensor.is_complex():
        return f"has dtype {tensor.dtype}, which the format does not support: convert it"
    return None


def identity_of(tensor: Tensor) -> Any:
    """Return a key that is equal for tensors with the same elements of the same storage."""
    if is_dtensor(tensor):
        local = local_of(tensor)
        # The parts of two tensors may be empty, and their storages at one null address.
        storage = local.untyped_storage()._cdata
        return storage, identity_of(local), tensor.shape, str(tensor.placements)  # type: ignore[attr-defined]
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _order(tensor: Tensor) -> list[int] | None:
    """Return the order of the dimensions in memory if it is another (as in channels_last).

    The file stores the elements in the order of the dimensions. The order in memory is saved too,
    because a computation on another memory layout can differ in the last bits.
    """
    if tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    return order if tensor.permute(order).is_contiguous() else None


def _escaped(part: Any) -> str:
    text = "".join(f"%{ord(c):02X}" if c in "/%" or not c.isprintable() else c for c in str(part))
    return text or "%"


def format_path(path: _Path) -> str:
    """Format a path in a tree for printing."""
    return "/".join(map(_escaped, path)) or "the tree"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_plain_key(key: Any) -> bool:
    return type(key) is str and not key.startswith("$") and strict_json.is_text(key)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# ---------------------------------------------------------------------------------------------
# Unpacking


class _Fault(Exception):
    """A fault of a node; `unpack` adds the path."""


@attrs.define
class _Unpacker:
    tensors: Mapping[str, Tensor]
    used: set[str] = attrs.field(factory=set)
    _made: dict[str, tuple[JSON, Tensor]] = attrs.field(factory=dict)
    """The tensors rebuilt so far, and their nodes."""

    def unpack(self, node: JSON, path: _Path) -> Any:
        if len(path) > _MAX_DEPTH + 1:
            raise DamagedCheckpointError("the state is nested too deeply.")
        try:
            if isinstance(node, list):
                return self._items(node, path)
            if isinstance(node, dict):
                return self._dict(node, path)
            if isinstance(node, str) and not strict_json.is_text(node):
                raise _Fault("invalid Unicode")
            return node
        except CheckpointError:
            raise
        except (_Fault, ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            raise DamagedCheckpointError(
                f"the state is damaged at {format_path(path)}: {str(error)[:200].rstrip('.')}."
            ) from None

    def _dict(self, node: dict[str, JSON], path: _Path) -> Any:
        """Rebuild a dictionary with plain keys, or the object that a tag names."""
        if not all(isinstance(key, str) and strict_json.is_text(key) for key in node):
            raise _Fault("a key is invalid Unicode")
        tag = next((key for key in node if key.startswith("$")), None)
        if tag is None:
            return {key: self.unpack(value, (*path, key)) for key, value in node.items()}
        if tag == "$tensor":
            return self._tensor(node)
        if len(node) != 1:
            raise _Fault(f"a {tag} has other keys")
        if tag == "$json":
            return node[tag]
        if tag == "$dict":
            return self._mapping(node[tag], path)
        if tag == "$deque":
            return self._deque(node[tag], path)
        if tag in _CONTAINER_OF:
            return self._collection(_CONTAINER_OF[tag], node[tag], path)
        if tag in _ATOM_OF:
            kind, assemble = _ATOM_OF[tag]
            content = self.unpack(node[tag], (*path, tag))
            check_type(content, kind, tag)
            return assemble(content)
        raise _Fault(f"{tag[:40]!r} is unknown; a newer version may have written it")

    def _items(self, items: JSON, path: _Path) -> list[Any]:
        if not isinstance(items, list):
            raise _Fault(f"{shorten(items, 40)} is not a list")
        return [self.unpack(item, (*path, index)) for index, item in enumerate(items)]

    def _mapping(self, pairs: JSON, path: _Path) -> dict[Any, Any]:
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in pairs
        ):
            raise _Fault("a $dict is not a list of pairs")
        mapping = {}
        for packed, value in pairs:
            key = self.unpack(packed, (*path, "a key"))
            if isinstance(key, Tensor):
                raise _Fault("a tensor is a key")
            mapping[key] = self.unpack(value, (*path, key))
        if len(mapping) != len(pairs):
            raise _Fault("a key occurs twice")
        return mapping

    def _collection(self, kind: type, items: JSON, path: _Path) -> Any:
        collection = kind(self._items(items, path))
        if len(collection) != len(items):
            raise _Fault("a set member occurs twice")
        return collection

    def _deque(self, content: JSON, path: _Path) -> deque[Any]:
        if not isinstance(content, list) or len(content) != 2:
            raise _Fault("a $deque is not a pair of a length and items")
        length, items = content
        if length is not None and not is_count(length):
            raise _Fault(f"a deque has length {shorten(length, 40)}")
        members = deque(self._items(items, path), length)
        if len(members) != len(items):
            raise _Fault("a deque has more items than it can hold")
        return members

    def _tensor(self, node: dict[str, JSON]) -> Tensor:
        name = node["$tensor"]
        if not isinstance(name, str) or not node.keys() <= {"$tensor", "order", "complex"}:
            raise _Fault("a $tensor is not a name")
        if name not in self.tensors:
            raise _Fault(f"tensor {name[:200]!r} is missing")
        if name not in self._made:
            self._made[name] = node, _rebuilt(self.tensors[name], node)
            self.used.add(name)
        first, tensor = self._made[name]
        if first != node:
            raise _Fault(f"tensor {name[:200]!r} is described in two different ways")
        return tensor


def _rebuilt(tensor: Tensor, node: dict[str, JSON]) -> Tensor:
    if "order" in node:
        order = node["order"]
        if not isinstance(order, list) or not all(map(is_count, order)):
            raise _Fault("the order of the dimensions is not a list of integers")
        if sorted(order) != list(range(tensor.ndim)):
            raise _Fault(f"order {order[:64]} is invalid for a tensor of {tensor.ndim} dimensions")
        back = sorted(range(tensor.ndim), key=order.__getitem__)
        tensor = tensor.permute(order).contiguous().permute(back)
    if "complex" in node:
        if node["complex"] is not True or tensor.shape[-1:] != (2,):
            raise _Fault("a complex tensor is not stored as pairs of numbers")
        if tensor.dtype not in (torch.float64, torch.float16):
            raise _Fault(f"a complex tensor has dtype {tensor.dtype}")
        if tensor.stride(-1) != 1 or any(step % 2 for step in tensor.stride()[:-1]):
            raise _Fault("the order of a complex tensor separates the parts of its numbers")
        tensor = torch.view_as_complex(tensor)
    return tensor


# ---------------------------------------------------------------------------------------------
# All other types: how each is disassembled, the type of the result, and how it is reassembled.
# Disassembling may raise ValueError or AttributeError, reassembling any error of a bad value.


def _is_pair(value: Any, kind: type) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [kind, kind]


def _is_fraction(value: Any) -> bool:
    # The time to reduce it is quadratic.
    return _is_pair(value, int) and max(one.bit_length() for one in value) <= _MAX_BITS


def _fields_of(timestamp: Timestamp) -> dict[str, Any]:
    return {name: _moment(name, value) for name, value in attrs.asdict(timestamp).items()}


def _timestamp(fields: dict[str, Any]) -> Timestamp:
    return Timestamp(**{name: _moment(name, value) for name, value in fields.items()})


def _moment(name: str, value: Any) -> Any:
    """Check a field of a timestamp: a count, or seconds."""
    counted = not str(name).endswith("_wct")
    number = type(value) is int or (not counted and type(value) is float)
    if not number or not 0 <= value < math.inf:
        kind = "integer" if counted else "number of seconds"
        raise ValueError(
            f"{name} of a timestamp is {shorten(value, 40)}, not a non-negative {kind}"
        )
    return value


_Floats = Annotated[Any, Kind("two floating-point numbers", lambda v: _is_pair(v, float))]
_Ratio = Annotated[Any, Kind(f"two integers of at most {_MAX_BITS} bits", _is_fraction)]
_Digits = Annotated[Any, Kind("an integer in hexadecimal digits", has_form("-?0x[0-9a-f]+"))]
_Double = Annotated[Any, Kind("a double in 16 hexadecimal digits", has_form("[0-9a-fA-F]{16}"))]
_Device = Annotated[Any, Kind("a device", has_form("[a-z]+(:[0-9]{1,4})?"))]
_Dtype = Annotated[Any, Kind("a dtype", lambda v: isinstance(v, str) and v in _TORCH_DTYPES)]

_ATOMS: dict[type, tuple[str, Callable[[Any], Any], Any, Callable[[Any], Any]]] = {
    bytes: ("$bytes", _text, str, partial(base64.b64decode, validate=True)),
    complex: ("$complex", lambda c: [c.real, c.imag], _Floats, lambda parts: complex(*parts)),
    Fraction: ("$fraction", lambda f: [f.numerator, f.denominator], _Ratio, lambda f: Fraction(*f)),
    torch.dtype: ("$dtype", lambda d: str(d)[6:], _Dtype, _TORCH_DTYPES.__getitem__),
    torch.device: ("$device", str, _Device, torch.device),
    torch.Size: ("$size", list, list[Count], torch.Size),
    Time: ("$time", str, str, Time.parse),
    Timestamp: ("$timestamp", _fields_of, dict[str, Any], _timestamp),
    Key: ("$key", lambda key: key.seed, Any, Key),
}
_ATOM_OF: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "$int": (_Digits, lambda digits: int(digits, 16)),
    "$float": (_Double, lambda digits: struct.unpack(">d", bytes.fromhex(digits))[0]),
    "$str": (str, lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass")),
    **{tag: (kind, assemble) for tag, _, kind, assemble in _ATOMS.values()},
}
_CONTAINERS: dict[type, str] = {
    list: "",
    tuple: "$tuple",
    set: "$set",
    frozenset: "$frozenset",
    deque: "$deque",
}
_CONTAINER_OF = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}


def listed(names: list[str]) -> str:
    """Join the first names for a message."""
    more = f" and {len(names) - 5} more" if names[5:] else ""
    return ", ".join(repr(name[:200]) for name in names[:5]) + more
