"""Argument errors: which argument, what it was, what is allowed, what to do."""

from collections.abc import Iterable, Mapping
from math import inf
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "check_blendable",
    "check_count",
    "check_flag",
    "check_generator",
    "check_module",
    "check_one_batch",
    "check_one_of",
    "check_partners",
    "check_place",
    "check_range",
    "check_same_names",
    "check_size",
    "check_tensor",
    "check_tensors",
]


def check_tensor(name: str, value: Any, *, advice: str = "") -> None:
    """Refuse what is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {_kind(value)}, but must be a tensor. {advice}".rstrip())


def check_tensors(name: str, value: Any) -> None:
    """Refuse what is no mapping of names to tensors."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is {_kind(value)}, but must be a mapping of names to tensors, such as "
            "dict(model.named_parameters())."
        )
    for key, tensor in value.items():
        if not isinstance(tensor, Tensor):  # so that names are put together for an error only
            check_tensor(f"{name}[{key!r}]", tensor)


def check_place(device: Any, dtype: Any) -> None:
    """Refuse what is no device, and what is no dtype of floats."""
    if device is not None and not isinstance(device, (torch.device, str)):
        raise TypeError(f"device is {device!r}, but must be a torch.device, its name, or None.")
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ValueError(
                f'device is {device!r}, but must be the name of one, such as "cpu" or "cuda:0".'
            ) from error
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype is {dtype!r}, but must be a floating-point torch.dtype.")


def check_module(name: str, value: Any) -> None:
    """Refuse what is no module."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} is {_kind(value)}, but must be a torch.nn.Module.")


def check_generator(generator: Any) -> None:
    """Refuse what is neither a generator nor None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator is {_kind(generator)}, but must be a torch.Generator or None: for a seed, "
            "write torch.Generator().manual_seed(seed)."
        )


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, but must be True or False.")


def check_range(
    name: str,
    value: Any,
    low: float,
    high: float = inf,
    *,
    ends: str = "[]",
    advice: str = "",
) -> None:
    """Refuse what is no number in the interval; `ends` says which ends belong to it."""
    if not _is_number(value):
        allowed = f"a number in {ends[0]}{low}, {high}{ends[1]}"
        raise TypeError(f"{name} is {value!r}, but must be {allowed}. {advice}".rstrip())
    above = value >= low if ends[0] == "[" else value > low
    below = value <= high if ends[1] == "]" else value < high
    if not (above and below):  # so that NaN, which compares to nothing, is refused
        allowed = f"in {ends[0]}{low}, {high}{ends[1]}"
        raise ValueError(f"{name} is {value!r}, but must be {allowed}. {advice}".rstrip())


def check_count(name: str, value: Any, low: int = 0, *, advice: str = "") -> None:
    """Refuse what is not a whole number of at least `low`."""
    # Not by hasattr(value, "__index__"), which torch.compile can't ask of a size that changes.
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(f"{name} is {value!r}, but must be a whole number. {advice}".rstrip())
    if value < low:
        raise ValueError(f"{name} is {value!r}, but must be at least {low}. {advice}".rstrip())


def check_size(name: str, value: Any) -> None:
    """Refuse what is no sequence of sizes, one or more."""
    if not isinstance(value, (tuple, list)) or not value:
        raise TypeError(
            f"{name} is {value!r}, but must be the sizes of the spatial dimensions, such as "
            "inputs.shape[2:]."
        )
    for i, length in enumerate(value):
        check_count(f"{name}[{i}]", length)


def check_one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse an option that does not exist."""
    options = list(allowed)
    if value not in options:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(options)}.")


def check_blendable(name: str, tensor: Any, *, advice: str = "") -> None:
    """Refuse what is no tensor, or one of integers or bools, which has no values in between."""
    check_tensor(name, tensor, advice=advice)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, but must have a floating-point one. "
            f"Convert it first, for example with {name}.float() / 255 for uint8 images."
        )


def check_one_batch(inputs: Tensor, targets: Tensor) -> None:
    """Refuse inputs and targets that are not of one batch."""
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)} "
            "must both begin with a dimension of the batch, of one size."
        )


def check_partners(permutation: Any, inputs: Tensor) -> None:
    """Refuse a draw of partners for another number of examples."""
    check_tensor("draw.permutation", permutation)
    if permutation.shape != inputs.shape[:1]:
        raise ValueError(
            f"draw has {len(permutation)} partners, but inputs has {len(inputs)} examples. "
            "Draw with batch_size=len(inputs)."
        )


def check_same_names(first: str, names: Iterable[str], second: str, others: Iterable[str]) -> None:
    """Refuse two mappings that do not hold the same names."""
    left, right = set(names), set(others)
    if left != right:
        raise ValueError(
            f"{first} and {second} must hold the same names, but only {first} has "
            f"{_some(left - right)} and only {second} has {_some(right - left)}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(map(str, names))[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
