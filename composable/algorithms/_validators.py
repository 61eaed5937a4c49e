"""Validators of hyperparameters: the checks of `composable.functional`, as attrs calls them."""

from collections.abc import Callable
from typing import Any

import attrs

from composable._support import checks

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def passes(check: Callable[..., object], *args: Any, **options: Any) -> Validator:
    """Validate a field by `check(name, value, *args, **options)`, which raises the error."""

    def validate(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        check(attribute.name, value, *args, **options)

    return validate


def in_range(low: float, high: float = float("inf"), *, ends: str = "[]") -> Validator:
    """Require a number in an interval; a round bracket in `ends` excludes that end."""
    return passes(checks.check_range, low, high, ends=ends)


def integer_at_least(low: int) -> Validator:
    """Require an integer of at least `low`."""
    return passes(checks.check_count, low)


def one_of(*allowed: str) -> Validator:
    """Require one of several options."""
    return passes(checks.check_one_of, allowed)


def name_or_none(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Require the name of a module, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{attribute.name}={value!r} must be the name of a module, or None.")


boolean = passes(checks.check_flag)
low_precision = passes(checks.check_precision)
