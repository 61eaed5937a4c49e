"""Argument errors: which argument, what it was, what is allowed, what to do."""

from collections.abc import Iterable
from math import inf

from torch import Tensor

__all__ = ["check_blendable", "check_count", "check_one_of", "check_range", "check_same_names"]


def check_range(
    name: str,
    value: float,
    low: float,
    high: float = inf,
    *,
    ends: str = "[]",
    advice: str = "",
) -> None:
    """Refuse a number outside the interval; `ends` says which ends belong to it."""
    above = value >= low if ends[0] == "[" else value > low
    below = value <= high if ends[1] == "]" else value < high
    if not (above and below):  # so that NaN, which compares to nothing, is refused
        allowed = f"in {ends[0]}{low}, {high}{ends[1]}"
        raise ValueError(f"{name} is {value!r}, but must be {allowed}. {advice}".rstrip())


def check_count(name: str, value: int, low: int = 0, *, advice: str = "") -> None:
    """Refuse what is not a whole number of at least `low`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, but must be a whole number. {advice}".rstrip())
    if value < low:
        raise ValueError(f"{name} is {value!r}, but must be at least {low}. {advice}".rstrip())


def check_one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse an option that does not exist."""
    options = list(allowed)
    if value not in options:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(options)}.")


def check_blendable(name: str, tensor: Tensor) -> None:
    """Refuse a tensor of integers or bools, which has no values in between."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, but must have a floating-point one. "
            f"Convert it first, for example with {name}.float() / 255 for uint8 images."
        )


def check_same_names(first: str, names: Iterable[str], second: str, others: Iterable[str]) -> None:
    """Refuse two mappings that do not hold the same names."""
    left, right = set(names), set(others)
    if left != right:
        raise ValueError(
            f"{first} and {second} must hold the same names, but only {first} has "
            f"{_some(left - right)} and only {second} has {_some(right - left)}."
        )


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
