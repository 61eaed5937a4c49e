"""The settings that tuning tries: every arm tries as many configurations."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import isfinite
from typing import Any, TypeAlias, get_args

import torch

from composable.comparison.arms import Arm
from composable.comparison.records import AMOUNT, Scalar, Settings
from composable.core.key import Key

Grid: TypeAlias = Mapping[str, tuple[Scalar, ...]]

_PASSED = (
    *("algorithms", "seed", "optimizers", "schedulers", "max_duration"),
    *("arm", "duration", AMOUNT),
)


def hyperparameters(
    name: str, function: Callable[..., Any], required: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the hyperparameters of the compared function; None for `**hyperparameters`."""
    call = f"{name}({', '.join(required)}, **hyperparameters)"
    if not callable(function):
        raise TypeError(f"{name}={function!r} must be a function {call}.")
    signature = inspect.signature(function)
    try:
        signature.bind_partial(**dict.fromkeys(required))
    except TypeError:
        raise TypeError(
            f"{name}{signature} must take {', '.join(required)} by these names: {call}."
        ) from None
    parameters = list(signature.parameters.values())
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.name not in required)


def grids_of(
    tune: Mapping[str, Any] | None, arms: Sequence[Arm], taken: Sequence[str] | None
) -> dict[str, Grid]:
    """Return the values to try by arm, given those for all arms, and by the name of an arm."""
    if tune is not None and not isinstance(tune, Mapping):
        raise TypeError(f"tune={tune!r} must be a mapping, such as {{'lr': [0.01, 0.1]}}.")
    shared = {name: value for name, value in (tune or {}).items() if not isinstance(value, Mapping)}
    own = {name: value for name, value in (tune or {}).items() if isinstance(value, Mapping)}
    names = [arm.name for arm in arms]
    for name in own:
        if name not in names:
            raise ValueError(f"tune has values for {name!r}; the arms are {names}.")
    grids: dict[str, Grid] = {}
    for arm in arms:
        given = {**shared, **own.get(arm.name, {})}
        grids[arm.name] = {name: _values(name, values) for name, values in given.items()}
        _check_known(arm, given, taken)
    return grids


def _values(name: str, values: Any) -> tuple[Scalar, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"tune[{name!r}]={values!r} must be a list of values, such as [0.01, 0.1].")
    tried = tuple(values)
    if not tried:
        raise ValueError(f"tune[{name!r}] must have at least one value.")
    if not all(map(_is_scalar, tried)):
        raise TypeError(
            f"tune[{name!r}]={values!r} must be finite numbers, strings, True, False or None, "
            "which study.json can hold; for anything else, pass its name, and look it up in build."
        )
    if any(one in tried[:at] for at, one in enumerate(tried)):
        raise ValueError(f"tune[{name!r}]={list(tried)} has a value twice; list each once.")
    return tried


def _is_scalar(value: Any) -> bool:
    return isfinite(value) if isinstance(value, float) else isinstance(value, get_args(Scalar))


def _check_known(arm: Arm, given: Iterable[str], taken: Sequence[str] | None) -> None:
    own = arm.takes
    passed = [name for name in given if name in _PASSED and name not in own]
    if passed:
        raise ValueError(f"tune has {passed}, which compare itself passes to build; drop it.")
    allowed = [one for one in taken or () if one not in _PASSED]
    unknown = [] if taken is None else [n for n in given if n not in (*allowed, *own)]
    if unknown:
        raise ValueError(
            f"tune has {unknown} for arm {arm.name!r}, which neither the function nor the arm "
            f"takes. Give the function a parameter, such as build(algorithms, seed, "
            f"{unknown[0]}=...): it takes {allowed}, the arm {list(own)}. For hyperparameters of "
            "one arm, pass tune={'NAME OF THE ARM': {...}}."
        )
    missing = [name for name, one in own.items() if one.default is one.empty and name not in given]
    if missing:
        raise ValueError(
            f"the function of arm {arm.name!r} requires {missing}; give it a default, or pass "
            f"values in tune."
        )


def configurations(
    grids: Mapping[str, Grid],
) -> tuple[dict[str, tuple[Settings, ...]], list[str]]:
    """Return equally many configurations of each arm, a sample of larger grids, and notes."""
    every = {
        arm: tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
        for arm, grid in grids.items()
    }
    least, most = min(map(len, every.values())), max(map(len, every.values()))
    if least == 1 and most > 1:
        single = [arm for arm, tried in every.items() if len(tried) == 1]
        raise ValueError(
            f"tune leaves {single} a single configuration, and other arms up to {most}. Every arm "
            "tries the same number: pass values for all of them, such as learning rates."
        )
    larger = ", ".join(f"{arm} ({len(one)})" for arm, one in every.items() if len(one) > least)
    note = f"Every arm tries {least} configurations: a sample of the larger grids of {larger}."
    return {arm: sample(value, least) for arm, value in every.items()}, [note] if larger else []


def sample(items: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return `count` of the items, drawn by their number alone, in their order.

    A smaller sample is a part of a larger one.
    """
    if len(items) <= count:
        return tuple(items)
    generator = Key(0).fold("tune").generator()
    chosen = torch.randperm(len(items), generator=generator)[:count].tolist()
    return tuple(items[at] for at in sorted(chosen))
