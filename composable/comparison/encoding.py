"""Encode records of a comparison as JSON, and decode them, by the types of their fields.

A number that is not finite is the text "NaN", "Infinity" or "-Infinity". Where a field may hold any
plain value, objects with one key mark what JSON does not have: `{"$float": "NaN"}` and
`{"$tuple": [1, 2]}`.
"""

import math
import reprlib
import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

__all__ = ["InvalidRecordError", "decode", "encode"]

T = TypeVar("T")

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = "None, True, False, a number, a string, or a list, tuple or dict of these"


class InvalidRecordError(ValueError):
    """A record, or its JSON, has a missing, unknown or invalid field."""


# --- to JSON ---


def encode(record: Any, path: str = "record") -> Any:
    """Return a record as JSON values.

    Args:
        record: A record of `records`, such as a `TrialResult`.
        path: The name of the record in messages.

    Raises:
        InvalidRecordError: A value cannot be written as JSON, such as a function in the settings.

    Example:
        >>> from composable.comparison.encoding import encode
        >>> from composable.comparison.records import Seconds
        >>> encode(Seconds(1.5, 0.2, float("inf"), 0.0))
        {'setup': 1.5, 'warmup': 0.2, 'training': 'Infinity', 'evaluation': 0.0}
    """
    return _encode(type(record), record, path)


def _encode(kind: Any, value: Any, path: str) -> Any:
    """Encode a value by its declared type; `decode` is the inverse."""
    origin, args = get_origin(kind), get_args(kind)
    if attrs.has(kind):
        return {
            name: _encode(declared, getattr(value, name), f"{path}.{name}")
            for name, declared in _fields(kind).items()
        }
    if kind is Any:
        return _encode_plain(value, path)
    if origin is tuple:
        return [_encode(args[0], one, f"{path}[{i}]") for i, one in enumerate(value)]
    if origin is Mapping:
        return {
            _checked(str, key, path): _encode(args[1], one, f"{path}[{key!r}]")
            for key, one in value.items()
        }
    if origin in (Union, UnionType):
        return None if value is None else _encode(_not_none(args), value, path)
    if origin is Literal or kind in (int, str):
        return _decode(kind, value, path)
    if kind is float:
        return _encode_float(_number(value, path))
    return _encode_plain(value, path)


def _encode_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _encode_plain(value: Any, path: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        number = _encode_float(float(value))
        return {"$float": number} if isinstance(number, str) else number
    if type(value) in (list, tuple):
        items = [_encode_plain(one, f"{path}[{i}]") for i, one in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, Mapping) and all(_is_name(key) for key in value):
        return {key: _encode_plain(one, f"{path}[{key!r}]") for key, one in value.items()}
    raise InvalidRecordError(
        f"{path}={reprlib.repr(value)} cannot be written as JSON: use {_PLAIN}; "
        "keys of a dict must be strings that do not begin with '$'."
    )


def _is_name(key: Any) -> bool:
    return type(key) is str and not key.startswith("$")


# --- from JSON ---


def decode(kind: type[T], value: Any, path: str = "record") -> T:
    """Return the record of JSON values, the inverse of `encode`.

    Args:
        kind: The type of the record, such as `TrialResult`.
        value: The decoded JSON.
        path: The name of the record in messages.

    Raises:
        InvalidRecordError: A field is missing, unknown or of another type; the message gives its
            path, such as "study.results[3].seconds.training".

    Example:
        >>> from composable.comparison.encoding import decode
        >>> from composable.comparison.records import Seconds
        >>> decode(Seconds, {"setup": 1.5, "warmup": 0, "training": 2, "evaluation": "NaN"})
        Seconds(setup=1.5, warmup=0.0, training=2.0, evaluation=nan)
    """
    decoded: T = _decode(kind, value, path)
    return decoded


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if attrs.has(kind):
        return _decode_record(kind, value, path)
    if kind is Any:
        return _decode_plain(value, path)
    if origin is tuple:
        items = _checked(list, value, path)
        return tuple(_decode(args[0], one, f"{path}[{i}]") for i, one in enumerate(items))
    if origin is Mapping:
        given = _checked(dict, value, path)
        return {key: _decode(args[1], one, f"{path}[{key!r}]") for key, one in given.items()}
    if origin in (Union, UnionType):
        return None if value is None else _decode(_not_none(args), value, path)
    if origin is Literal:
        if value not in args:
            raise InvalidRecordError(f"{path}={reprlib.repr(value)} must be one of {list(args)}.")
        return value
    return _number(value, path) if kind is float else _checked(kind, value, path)


def _decode_record(kind: Any, value: Any, path: str) -> Any:
    fields = _fields(kind)
    former = getattr(kind, "FORMER_FIELDS", ())
    given = {k: v for k, v in _checked(dict, value, path).items() if k not in former}
    if unknown := sorted(given.keys() - fields.keys()):
        raise InvalidRecordError(
            f"{path} has the unknown field {unknown[0]!r}; the fields are {sorted(fields)}."
        )
    required = {a.name for a in attrs.fields(kind) if a.default is attrs.NOTHING}
    if missing := sorted(required - given.keys()):
        raise InvalidRecordError(f"{path} lacks the field {missing[0]!r}.")
    return kind(**{name: _decode(fields[name], given[name], f"{path}.{name}") for name in given})


def _decode_plain(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_decode_plain(one, f"{path}[{i}]") for i, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value and len(value) == 1:
        items = _checked(list, value["$tuple"], path)
        return tuple(_decode_plain(one, f"{path}[{i}]") for i, one in enumerate(items))
    if "$float" in value and len(value) == 1 and value["$float"] in list(_NOT_FINITE):
        return _NOT_FINITE[value["$float"]]
    if not all(map(_is_name, value)):
        raise InvalidRecordError(
            f"{path}={reprlib.repr(value)} is invalid: the keys with '$' are '$tuple' of a "
            f"list, and '$float' of one of {list(_NOT_FINITE)}."
        )
    return {key: _decode_plain(one, f"{path}[{key!r}]") for key, one in value.items()}


def _number(value: Any, path: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, float) or type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass  # an integer beyond the largest float
    raise InvalidRecordError(
        f"{path}={reprlib.repr(value)} must be a number of at most "
        f"{sys.float_info.max:.3g}, or one of {list(_NOT_FINITE)}."
    )


def _checked(kind: type[T], value: Any, path: str) -> T:
    names = {dict: "an object", list: "a list", int: "an integer", str: "a string"}
    if type(value) is not kind:
        expected = names.get(kind, kind.__name__)
        raise InvalidRecordError(f"{path}={reprlib.repr(value)} must be {expected}.")
    return value


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the declared types of the fields of a record, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in attrs.fields(kind)}


def _not_none(kinds: tuple[Any, ...]) -> Any:
    return next(kind for kind in kinds if kind is not NoneType)
