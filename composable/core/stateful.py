"""Parts of a run that a checkpoint saves, and what they save: declared types, and their check."""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs
from torch import Tensor
from typing_extensions import TypedDict, is_typeddict

from composable._support.printable import shorten


class Stateful(Protocol):
    """A part of a run that a checkpoint saves, by the protocol of `torch.nn.Module`.

    The type that `state_dict` is declared to return, a `TypedDict`, is the structure with which a
    checkpoint is compared before anything is changed. A part whose fields are its state derives
    from `SavedFields`.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the part must remember: plain containers and tensors."""

    def load_state_dict(self, state: Any, /) -> None:
        """Restore what `state_dict` returned, by other objects: the old ones stay as they are.

        Raises:
            CheckpointError: It does not fit the part. The message begins with the path in it.
        """


_SAVED = "type of the value in a checkpoint"


def saved(kind: Any, **arguments: Any) -> Any:
    """Declare a field of an attrs class that checkpoints save.

    Args:
        kind: The type of its value in a checkpoint.
        arguments: Further arguments of `attrs.field`.
    """
    return attrs.field(metadata={_SAVED: kind}, **arguments)


class SavedFields:
    """A part of which a checkpoint saves the fields that are declared by `saved`.

    Their values are plain, or tensors of one number; a set is saved as a sorted list.

    Example:
        >>> @attrs.define
        ... class Counter(SavedFields):
        ...     step: float
        ...     count: int = saved(Count, default=0)
        >>> counter = Counter(0.5, 3)
        >>> counter.state_dict()
        {'count': 3}
        >>> counter.load_state_dict({"count": 4})
        >>> counter
        Counter(step=0.5, count=4)
    """

    __slots__ = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the saved fields."""
        return {name: _plain(getattr(self, own)) for name, own, _ in _saved(type(self))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, field, _ in _saved(type(self)):
            own, value = getattr(self, field), state[name]
            copied = type(own)(value) if isinstance(own, (dict, list, set)) else value
            setattr(self, field, copied)


def _saved(part: type) -> Iterator[tuple[str, str, Any]]:
    """Yield the name in a checkpoint, the name, and the type of each saved field."""
    for field in attrs.fields(part):
        if _SAVED in field.metadata:
            yield str(field.alias), field.name, field.metadata[_SAVED]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return sorted(value) if isinstance(value, set) else value


def declared_state(part: type[Stateful]) -> Any:
    """Return the type of what a part saves: of its fields, or of its `state_dict`."""
    if issubclass(part, SavedFields):
        kinds = {name: kind for name, _, kind in _saved(part)}
        return TypedDict(part.__name__, kinds)  # type: ignore[operator]
    return get_type_hints(part.state_dict, include_extras=True)["return"]


@attrs.frozen
class Kind:
    """What a saved value must be, in words and as a test: the metadata of an annotated type."""

    name: str
    fits: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Return whether a value is a non-negative integer of 53 bits."""
    return type(value) is int and 0 <= value < 2**53


def has_form(pattern: str) -> Callable[[Any], bool]:
    """Return a test of whether a value is a string that a pattern matches as a whole."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or a tensor of one."""
    single = isinstance(value, Tensor) and value.numel() == 1
    return single or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_size(value: Any) -> bool:
    return value is None or (is_count(value) and value > 0)


def _is_factor(value: Any) -> bool:
    return value is None or (isinstance(value, float) and 0 < value < 2.0**128)


def _is_number_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Fraction) or is_number(value)


def list_of_numbers(count: int, *, optional: bool = False) -> Any:
    """Return the type of a list of some numbers, or None if it is optional."""

    def fits(value: Any) -> bool:
        if value is None:
            return optional
        return isinstance(value, list) and len(value) == count and all(map(is_number, value))

    return Annotated[Any, Kind(f"a list of {count} numbers{' or None' * optional}", fits)]


Count = Annotated[int, Kind("a non-negative integer", is_count)]
Number = Annotated[Any, Kind("a number", is_number)]
NumberOrNone = Annotated[Any, Kind("a number or None", _is_number_or_none)]
Size = Annotated[int | None, Kind("a positive integer or None", _is_size)]
Factor = Annotated[float | None, Kind("a positive number or None", _is_factor)]


# --- the check of a value against a declared type ---

_NAMES = {
    str: "a string",
    bool: "True or False",
    list: "a list",
    dict: "a dictionary",
    Mapping: "a dictionary",
    Tensor: "a tensor",
    NoneType: "None",
}


class StructureError(ValueError):
    """A value has another type than the declared one. The message begins with its path."""


def check_type(value: Any, kind: Any, where: str = "") -> None:
    """Check that a value, with its items and entries, is of a type.

    Args:
        value: Plain containers and values; their own types are not converted.
        kind: A class, `Any`, a union, a `TypedDict`, a list or a dictionary of these, or a type
            that is annotated with a `Kind`.
        where: The path of the value, for errors.

    Raises:
        StructureError: It is not.

    Example:
        >>> from composable.core.stateful import check_type
        >>> check_type({"epochs": [1, "2"]}, dict[str, list[int]])
        Traceback (most recent call last):
        ...
        composable.core.stateful.StructureError: epochs/1 is '2', and must be a int.
    """
    parsed = _parse(kind)
    if not parsed.kind.fits(value):
        shown = shorten(value) if get_origin(kind) is Annotated else short(value)
        raise StructureError(f"{where or 'it'} is {shown}, and must be {parsed.kind.name}.")
    if value is None:
        return
    for name, inner in parsed.entries.items():
        if name not in value:
            raise StructureError(f"{_inside(where, name)} is missing.")
        check_type(value[name], inner, _inside(where, name))
    if parsed.entries and (unknown := sorted(map(str, value.keys() - parsed.entries.keys()))):
        raise StructureError(f"{where or 'it'} has the unknown entries {unknown[:12]}.")
    if parsed.item is not None:
        pairs: Any = value.items() if parsed.key else enumerate(value)
        for name, item in pairs:
            place = _inside(where, name)
            if parsed.key:
                check_type(name, parsed.key, place)
            check_type(item, parsed.item, place)


@attrs.frozen
class _Parsed:
    """A declared type: what a value must be, and the types of its entries, or keys and items."""

    kind: Kind
    entries: Mapping[str, Any] = MappingProxyType({})
    key: Any = None
    item: Any = None


@cache
def _parse(kind: Any) -> _Parsed:
    if kind is Any:
        return _Parsed(Kind("anything", lambda _: True))
    if get_origin(kind) is Annotated:
        return _Parsed(*kind.__metadata__)
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    classes = tuple(dict if is_typeddict(one) else get_origin(one) or one for one in members)
    name = " or ".join(_NAMES.get(one, f"a {one.__name__}") for one in classes)
    plain = Kind(name, lambda value: isinstance(value, classes))
    for member in members:
        if is_typeddict(member):
            return _Parsed(plain, get_type_hints(member, include_extras=True))
        if get_origin(member) in (list, dict):
            *key, item = get_args(member)
            return _Parsed(plain, key=key[0] if key else None, item=item)
    return _Parsed(plain)


def _inside(where: str, name: Any) -> str:
    text = name[:80] if isinstance(name, str) else shorten(name)
    return f"{where}/{text}" if where else text


def short(value: Any) -> str:
    """Return a value, or its type, in a few words."""
    if isinstance(value, (str, int, float, NoneType)):
        try:
            return repr(value)[:80]
        except ValueError:  # an integer with too many digits to print
            return "an integer"
    return f"a {type(value).__name__}"
