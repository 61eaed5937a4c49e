"""Hyperparameters: the checks of `composable.functional` as validators of fields."""

from collections.abc import Callable
from typing import Any

import attrs

from composable._support import checks
from composable.core.time import Time, TimeUnit

_COUNTED = (TimeUnit.BATCH, TimeUnit.EPOCH)

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def passes(check: Callable[..., object], *args: Any, **options: Any) -> Validator:
    """Validate a field by `check(name, value, *args, **options)`, which raises the error."""

    def validate(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        check(attribute.name, value, *args, **options)

    return validate


def in_range(low: float, high: float = float("inf"), *, ends: str = "[]") -> Validator:
    """Require a number in an interval; a round bracket in `ends` excludes that end."""
    return passes(checks.within(low, high, ends=ends))


def integer_at_least(low: int) -> Validator:
    """Require an integer of at least `low`."""
    return passes(checks.minimum(low))


def one_of(*allowed: str) -> Validator:
    """Require one of several options."""
    return passes(checks.check_one_of, allowed)


def batches_or_epochs(example: str) -> Validator:
    """Require a time in batches or epochs above 0, or None."""

    def check(name: str, time: Time | None) -> None:
        if time is not None and (time.unit not in _COUNTED or not time.value):
            raise ValueError(
                f"{name}={str(time)!r} must be greater than 0, in batches or epochs, such as "
                f"{example!r}."
            )

    return passes(check)


boolean = passes(checks.check_flag)
name_or_none = passes(checks.check_module_name)
