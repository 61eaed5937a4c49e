"""Checks of arguments. An error gives the argument, its value, what is allowed and what to do."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from functools import cache, partial, wraps
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import attrs
import torch
from torch import Tensor, nn

LOW_PRECISION = (torch.float16, torch.bfloat16)
_LARGEST = 2**63 - 1
# One slash is enough, since Path("s3://bucket") is s3:/bucket; one letter is a drive of Windows.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(:[A-Za-z0-9+.:-]*)?/")
P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], object]
"""A check of the name and the value of an argument."""


class PathError(ValueError):
    """A value does not name a local file or folder."""


class StorageError(OSError):
    """Files in an object store cannot be read or written."""


class Checked(Protocol[P, R]):
    """A public function that checks its arguments."""

    checks: Mapping[str, Check]
    """The checks of single arguments, by their names."""
    unchecked: Callable[P, R]
    """The function without the checks, for callers that have checked the arguments."""

    def __call__(self, *args: P.args, **options: P.kwargs) -> R: ...


def checked(
    together: Callable[..., object] | None = None, /, **each: Check
) -> Callable[[Callable[P, R]], Checked[P, R]]:
    """Check the arguments of a public function that are given.

    Args:
        together: A function of all arguments.
        each: The checks of single arguments, by their names; `model` and `generator` have theirs.
    """
    each = {**_EVERYWHERE, **each}

    def decorate(function: Callable[P, R]) -> Checked[P, R]:
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        required = {name for name in names if parameters[name].default is inspect.Parameter.empty}

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            given = {**dict(zip(names, args, strict=False)), **options}
            for name, value in given.items():
                if name in each:
                    each[name](name, value)
            # Of a missing or unknown argument, the function itself says that it is.
            if together is not None and required <= given.keys() <= parameters.keys():
                together(**given)
            return function(*args, **options)

        call.checks, call.unchecked = each, function  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def check_fields(owner: Any, function: Callable[..., Any]) -> None:
    """Check the fields of an object as a function checks its arguments of their names."""
    checks_of = getattr(function, "checks", {})
    for name in _shared_names(owner.__class__, function):
        if name in checks_of:
            checks_of[name](name, getattr(owner, name))


def with_fields(owner: Any, function: Callable[..., R]) -> partial[R]:
    """Return a function with the fields of an object that it takes, which have been checked."""
    names = _shared_names(owner.__class__, function)
    fields = zip(names, map(owner.__getattribute__, names), strict=True)
    return partial(getattr(function, "unchecked", function), **dict(fields))


@cache
def _shared_names(kind: type, function: Callable[..., Any]) -> tuple[str, ...]:
    taken = inspect.signature(function).parameters
    return tuple(field.name for field in attrs.fields(kind) if field.name in taken)


def within(low: float, high: float = inf, *, ends: str = "[]") -> Check:
    """Return the check of a number in an interval: see `check_range`."""
    return partial(check_range, low=low, high=high, ends=ends)


def minimum(low: int) -> Check:
    """Return the check of an integer of at least `low`."""
    return partial(check_count, low=low)


def optional(check: Check) -> Check:
    """Return a check that None passes."""
    return lambda name, value: None if value is None else check(name, value)


def check_tensor(name: str, value: Any, *, advice: str = "") -> None:
    """Raise a TypeError unless the value is a dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(_say(f"{name} must be a tensor, not {kind_of(value)}", advice))
    if value.layout is not torch.strided:
        raise TypeError(
            f"{name} must be a dense tensor, not one of layout {value.layout}; convert it first, "
            f"such as {name}.to_dense()."
        )


def check_tensors(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is a mapping of names to tensors."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a mapping of names to tensors, not {kind_of(value)}; pass "
            "dict(model.named_parameters()) or the like."
        )
    for key, tensor in value.items():
        if not isinstance(tensor, Tensor):  # the name is only formatted for an error
            check_tensor(f"{name}[{key!r}]", tensor)


def check_place(device: Any, dtype: Any) -> None:
    """Raise an error unless the arguments are a device (or None) and a floating-point dtype."""
    check_device(device)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype={dtype!r} must be a floating-point torch.dtype.")


def check_device(device: Any) -> None:
    """Raise an error unless the value is a device, its name, or None."""
    if device is not None and not isinstance(device, (torch.device, str)):
        raise TypeError(f"device={device!r} must be a torch.device, its name, or None.")
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ValueError(
                f'device={device!r} must be the name of a device, such as "cpu" or "cuda:0".'
            ) from error


def check_precision(name: str, value: Any) -> None:
    """Raise an error unless the value is a 16-bit floating-point dtype or None."""
    known = isinstance(value, torch.dtype)
    if value is not None and not (known and value in LOW_PRECISION):
        kind = ValueError if known else TypeError
        raise kind(
            f"{name}={value!r} must be torch.float16, torch.bfloat16, or None for the dtype of "
            "autocast."
        )


def check_module(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is a module."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, not {kind_of(value)}.")


def check_generator(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is a generator or None."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(
            f"{name} must be a torch.Generator or None, not {kind_of(value)}; for a seed, "
            "pass torch.Generator().manual_seed(seed)."
        )


def check_entries(value: Any, *names: str) -> None:
    """Raise a ValueError unless a value is a mapping with these keys."""
    if not isinstance(value, Mapping) or value.keys() != set(names):
        raise ValueError(f"it must have the entries {', '.join(names)}.")


_EVERYWHERE: dict[str, Check] = {"model": check_module, "generator": check_generator}


def check_is_callable(name: str, value: Any) -> None:
    """Raise a TypeError unless the value can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {kind_of(value)}.")


def check_flag(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False.")


def check_text(name: str, value: Any) -> None:
    """Raise an error unless the value is None or a string that is not empty."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a string or None.")
    if value == "" or (value and "\0" in value):
        raise ValueError(f"{name}={value!r} must not be empty or contain null characters.")


def check_module_name(name: str, value: Any) -> None:
    """Raise a TypeError unless a value may be the name of a module, or is None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be the name of a module, or None.")


def check_texts(name: str, values: Any, of: str = "strings") -> None:
    """Raise a TypeError unless the values are a list of strings; `of` says what they mean."""
    listed = isinstance(values, (Sequence, Set)) and not isinstance(values, (str, bytes))
    if not listed or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name}={values!r} must be a list of {of}.")


def check_text_keys(name: str, values: Any) -> None:
    """Raise a TypeError unless the value is None, or a mapping whose keys are strings."""
    mapping = values is None or isinstance(values, Mapping)
    if not mapping or not all(isinstance(key, str) for key in values or ()):
        raise TypeError(f"{name}={values!r} must be a mapping with strings as keys, or None.")


def check_flags(**values: Any) -> None:
    """Raise a TypeError unless each of the values, by argument, is True or False."""
    for name, value in values.items():
        check_flag(name, value)


def check_range(
    name: str,
    value: Any,
    low: float,
    high: float = inf,
    *,
    ends: str = "[]",
    advice: str = "",
) -> None:
    """Raise an error unless the value is a number in an interval.

    Args:
        name: The argument.
        value: Its value.
        low: The lower end of the interval.
        high: The upper end of the interval.
        ends: The brackets of the interval: a round one excludes its end.
        advice: What to do instead, in lower case and without a full stop.
    """
    if not _is_number(value):
        allowed = _number(_interval(value, low, high, ends))
        raise TypeError(_say(f"{name}={value!r} must be {allowed}", advice))
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(_say(f"{name}={value!r} must be smaller than 2**63", advice))
    above = value >= low if ends[0] == "[" else value > low
    below = value <= high if ends[1] == "]" else value < high
    if not (above and below):  # NaN compares to nothing, so it is refused
        allowed = _interval(value, low, high, ends)
        raise ValueError(_say(f"{name}={value!r} must be {allowed}", advice))


def check_count(name: str, value: Any, low: int = 0, *, advice: str = "") -> None:
    """Raise an error unless the value is an integer of at least `low`."""
    # Not by hasattr(value, "__index__"): torch.compile can't evaluate it for a dynamic size.
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(_say(f"{name}={value!r} must be an integer, at least {low}", advice))
    if value < low:
        raise ValueError(_say(f"{name}={value!r} must be at least {low}", advice))
    if not isinstance(value, torch.SymInt) and int(value) > _LARGEST:
        raise ValueError(_say(f"{name}={value!r} must be smaller than 2**63", advice))


def check_integer(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is an integer."""
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(f"{name}={value!r} must be an integer.")
    if not isinstance(value, torch.SymInt) and abs(int(value)) > _LARGEST:
        raise ValueError(f"{name}={value!r} must be an integer of 64 bits.")


def check_order(first: str, low: Any, second: str, high: Any) -> None:
    """Raise a ValueError unless one number is at most the other, both checked by themselves."""
    if low > high:
        raise ValueError(f"{first}={low!r} must be at most {second}={high!r}.")


def check_size(name: str, value: Any) -> None:
    """Raise an error unless the value is a sequence of one or more sizes."""
    if not isinstance(value, (tuple, list)) or not value:
        raise TypeError(
            f"{name}={value!r} must be the sizes of the spatial dimensions; pass "
            "inputs.shape[2:] or the like."
        )
    for i, length in enumerate(value):
        check_count(f"{name}[{i}]", length)


def check_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise a ValueError unless the value is one of the allowed options."""
    options = list(allowed)
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name}={value!r} must be one of {options}.")


def check_any(first: str, one: bool, second: str, other: bool) -> None:
    """Raise a ValueError if both of two flags are False."""
    if not (one or other):
        raise ValueError(
            f"{first}=False and {second}=False leave nothing to replace; set one of them to True."
        )


def check_draw(value: Any, kind: type, function: str) -> None:
    """Raise a TypeError unless the value is the draw of a method."""
    if not isinstance(value, kind):
        raise TypeError(
            f"draw must be {_article(kind)}, not {kind_of(value)}; {function} returns one."
        )


def check_blendable(name: str, tensor: Any, *, advice: str = "") -> None:
    """Raise a TypeError unless the value is a floating-point or complex tensor."""
    check_tensor(name, tensor, advice=advice)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(
            f"{name} must have a floating-point dtype, not {tensor.dtype}; convert it first, such "
            f"as {name}.float() / 255 for uint8 images."
        )


def check_one_batch(
    inputs: Any, targets: Any, *, check: Callable[..., None] = check_tensor, advice: str = ""
) -> None:
    """Raise an error unless inputs, by a check, and targets are dense tensors of one batch size."""
    check("inputs", inputs, advice=advice)
    check_tensor("targets", targets, advice=advice)
    if not inputs.ndim or not targets.ndim or inputs.shape[0] != targets.shape[0]:
        raise ValueError(
            "inputs and targets must have the same size in dimension 0, the batch, not the shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )


def check_partners(permutation: Any, inputs: Tensor) -> None:
    """Raise an error unless a permutation has one entry for each example of the inputs."""
    check_tensor("draw.permutation", permutation)
    if permutation.shape != inputs.shape[:1]:
        raise ValueError(
            f"draw has {len(permutation)} partners, but inputs has {len(inputs)} examples; draw "
            "with batch_size=len(inputs)."
        )


def is_integer(tensor: Tensor) -> bool:
    """Return whether a tensor holds integers, and not flags."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def check_same_names(first: str, names: Iterable[str], second: str, others: Iterable[str]) -> None:
    """Raise a ValueError unless two mappings have the same names."""
    left, right = set(names), set(others)
    if left != right:
        raise ValueError(
            f"{first} and {second} must have the same names, but only {first} has "
            f"{_some(left - right)} and only {second} has {_some(right - left)}."
        )


def is_url(value: Any) -> bool:
    """Return whether a value is a URL, also if `pathlib` has removed one of its slashes."""
    return isinstance(value, (str, os.PathLike)) and bool(_URL.match(str(os.fspath(value))))


def as_path(name: str, value: Any) -> Path:
    """Return a path; raise an error unless the value names a file or folder."""
    path = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"{name}={value!r} must be a str or an os.PathLike of one.")
    if not path or "\0" in path:
        raise PathError(f"{name}={value!r} must name a file or folder.")
    if is_url(path):
        raise PathError(
            f"{name}={value!r} must be a local path, not a URL; pass a folder of this machine, or "
            "one where the storage is mounted, and copy the files when training ends."
        )
    return Path(path)


def kind_of(value: Any) -> str:
    """Describe the type of a value, for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    return _article(type(value))


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _say(claim: str, advice: str) -> str:
    return f"{claim}; {advice}." if advice else f"{claim}."


def _interval(value: Any, low: float, high: float, ends: str) -> str:
    if high != inf:
        return f"in {ends[0]}{low}, {high}{ends[1]}"
    if low == -inf:
        return "finite"
    bound = f"at least {low}" if ends[0] == "[" else f"greater than {low}"
    return f"{bound} and finite" if _is_number(value) and value == inf else bound


def _number(interval: str) -> str:
    if interval == "finite":
        return "a finite number"
    return f"a number {interval}" if interval.startswith("in ") else f"a number, {interval}"


def _is_number(value: Any) -> bool:
    # PyTorch computes with integers and floating-point numbers, not with fractions.
    return isinstance(value, Real) and not isinstance(value, (bool, Fraction))


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(map(str, names))[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def parameters_of(params: Any) -> list[Any]:
    """Return the parameters, or groups of them, that an optimizer is built with."""
    lone = (str, bytes, Mapping, Tensor, nn.Module)  # an nn.Sequential is iterable too
    several = isinstance(params, Iterable) and not isinstance(params, lone)
    found = list(params) if several else []
    if not found or not all(isinstance(one, (Tensor, dict, tuple)) for one in found):
        raise TypeError(
            "params must be parameters or groups of them, and not be empty: pass "
            "model.parameters(), or groups such as decay_groups(model)."
        )
    return found
