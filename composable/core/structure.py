"""Compare values from a file with declared types, such as a `TypedDict`."""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor
from typing_extensions import is_typeddict

from composable.core._printable import shorten
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
    wanted = _kind_of(kind)
    if not wanted.fits(value):
        shown = shorten(value) if get_origin(kind) is Annotated else short(value)
        raise StructureError(f"{where or 'it'} is {shown}, and must be {wanted.name}.")
    items = next((one for one in _members(kind) if get_origin(one) in (list, dict)), None)
    entries = next(filter(is_typeddict, _members(kind)), None)
    if value is None:
        return
    if entries is not None:
        _check_entries(value, entries, where)
    elif items is not None:
        *key, inner = get_args(items)
        for name, item in value.items() if key else enumerate(value):
            place = _inside(where, name)
            for one in key:
                check_type(name, one, place)
            check_type(item, inner, place)


def _check_entries(value: Mapping[str, Any], kind: Any, where: str) -> None:
    declared = _entries(kind)
    for name, inner in declared.items():
        if name not in value:
            raise StructureError(f"{_inside(where, name)} is missing.")
        check_type(value[name], inner, _inside(where, name))
    if unknown := sorted(map(str, value.keys() - declared.keys())):
        raise StructureError(f"{where or 'it'} has the unknown entries {unknown[:12]}.")


@cache
def _entries(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _kind_of(kind: Any) -> Kind:
    """Return the check that a value is of a type, whatever its items and entries are."""
    if kind is Any:
        return Kind("anything", lambda _: True)
    if get_origin(kind) is Annotated:
        (wanted,) = kind.__metadata__
        return wanted  # type: ignore[no-any-return]
    classes = tuple(dict if is_typeddict(one) else get_origin(one) or one for one in _members(kind))
    name = " or ".join(_NAMES.get(one, f"a {one.__name__}") for one in classes)
    return Kind(name, lambda value: isinstance(value, classes))


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
