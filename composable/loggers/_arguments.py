"""Checks of the arguments of loggers."""

from collections.abc import Iterable, Mapping
from typing import Any


def check_text(name: str, value: Any) -> None:
    """Raise an error unless a value is None or a string that is not empty."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a string or None.")
    if value == "" or (value and "\0" in value):
        raise ValueError(f"{name}={value!r} must not be empty or contain null characters.")


def check_texts(name: str, values: Any) -> None:
    """Raise a TypeError unless the values are a list of strings."""
    if not isinstance(values, (list, tuple)) or not _are_texts(values):
        raise TypeError(f"{name}={values!r} must be a list of strings.")


def check_mapping(name: str, values: Any) -> None:
    """Raise a TypeError unless a value is None, or a mapping whose keys are strings."""
    if values is not None and not (isinstance(values, Mapping) and _are_texts(values)):
        raise TypeError(f"{name}={values!r} must be a mapping with strings as keys, or None.")


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
