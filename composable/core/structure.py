"""Compare values from a file with declared types, such as a `TypedDict`."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs
from torch import Tensor
from typing_extensions import is_typeddict

from composable._support.printable import shorten
from composable.core.stateful import Kind

__all__ = ["StructureError", "check_type", "short"]

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
        >>> from composable.core.structure import check_type
        >>> check_type({"epochs": [1, "2"]}, dict[str, list[int]])
        Traceback (most recent call last):
        ...
        composable.core.structure.StructureError: epochs/1 is '2', and must be a int.
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
    for one in members:
        if is_typeddict(one):
            return _Parsed(plain, get_type_hints(one, include_extras=True))
        if get_origin(one) in (list, dict):
            *key, item = get_args(one)
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
