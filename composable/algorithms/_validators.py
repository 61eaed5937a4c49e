"""What hyperparameters may be, checked when an algorithm is built."""

from collections.abc import Callable
from typing import Any

import attrs
import torch

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def number(low: float, high: float = float("inf"), *, ends: str = "[]") -> Validator:
    """A number between two ends; `ends` has a round bracket where an end itself is refused."""
    low_open, high_open = ends[0] == "(", ends[1] == ")"

    def check(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{attribute.name}={value!r} must be a number.")
        above = value > low if low_open else value >= low
        below = value < high if high_open else value <= high
        if not (above and below):
            bounds = f"in {ends[0]}{low}, {high}{ends[1]}"
            if high == float("inf") and not high_open:
                bounds = f"above {low}" if low_open else f"{low} or more"
            raise ValueError(f"{attribute.name}={value!r} must be {bounds}.")

    return check


def integer(low: int) -> Validator:
    """An integer from `low` on."""

    def check(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{attribute.name}={value!r} must be an integer, {low} or more.")
        if value < low:
            raise ValueError(f"{attribute.name}={value!r} must be {low} or more.")

    return check


def flag(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{attribute.name}={value!r} must be True or False.")


def one_of(*allowed: str) -> Validator:
    """One of a few words."""

    def check(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value not in allowed:
            raise ValueError(f"{attribute.name}={value!r} must be one of {list(allowed)}.")

    return check


def low_precision(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """A dtype of 16 bits, or None."""
    if value is not None and value not in (torch.float16, torch.bfloat16):
        kind = ValueError if isinstance(value, torch.dtype) else TypeError
        raise kind(
            f"{attribute.name}={value!r} must be torch.float16, torch.bfloat16, or None for that "
            "of autocast."
        )
