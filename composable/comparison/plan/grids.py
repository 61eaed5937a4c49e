"""The configurations that each arm tries: as many for every arm."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import attrs
import torch

from composable.comparison.plan.arms import Arm
from composable.core.key import Key

__all__ = ["Configurations", "Settings", "build_takes", "configurations", "grids_of", "sample"]

Settings: TypeAlias = Mapping[str, Any]
Grid: TypeAlias = Mapping[str, tuple[Any, ...]]

_PASSED = ("algorithms", "seed", "optimizers", "schedulers", "max_duration")


@attrs.frozen
class Configurations:
    """The settings to try, by the name of each arm: equally many for all."""

    by_arm: Mapping[str, tuple[Settings, ...]]
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of configurations of every arm."""
        return min(map(len, self.by_arm.values()))


def build_takes(build: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the hyperparameters of a build function; None for `**hyperparameters`.

    Raises:
        TypeError: It does not take algorithms and a seed.
    """
    if not callable(build):
        raise TypeError(
            f"build={build!r} must be a function build(algorithms, seed, **hyperparameters) that "
            "returns a Trainer."
        )
    signature = inspect.signature(build)
    try:
        signature.bind_partial(algorithms=[], seed=0)
    except TypeError:
        raise TypeError(
            f"build{signature} must take the algorithms and the seed by these names: "
            "build(algorithms, seed, **hyperparameters)."
        ) from None
    parameters = list(signature.parameters.values())
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    return tuple(one.name for one in parameters if one.name not in ("algorithms", "seed"))


def grids_of(
    tune: Mapping[str, Any] | None, arms: Sequence[Arm], taken: Sequence[str] | None
) -> dict[str, Grid]:
    """Return the values to try by arm.

    Args:
        tune: The values of each hyperparameter, for all arms; or by the name of an arm, a mapping
            of hyperparameters of this arm alone.
        arms: The arms.
        taken: The hyperparameters of the build function; None for any.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A hyperparameter is unknown, or has no values.
    """
    if tune is not None and not isinstance(tune, Mapping):
        raise TypeError(f"tune={tune!r} must be a mapping, such as {{'lr': [0.01, 0.1]}}.")
    shared = {name: one for name, one in (tune or {}).items() if not isinstance(one, Mapping)}
    own = {name: one for name, one in (tune or {}).items() if isinstance(one, Mapping)}
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


def _values(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"tune[{name!r}]={values!r} must be a list of values, such as [0.01, 0.1].")
    tried = tuple(values)
    if not tried:
        raise ValueError(f"tune[{name!r}] must have at least one value.")
    if any(not isinstance(one, (bool, int, float, str, type(None))) for one in tried):
        raise TypeError(
            f"tune[{name!r}]={values!r} must be numbers, strings, True, False or None, which "
            "study.json can hold; for anything else, pass its name, and look it up in build."
        )
    if any(one in tried[:at] for at, one in enumerate(tried)):
        raise ValueError(f"tune[{name!r}]={list(tried)} has a value twice; list each once.")
    return tried


def _check_known(arm: Arm, given: Iterable[str], taken: Sequence[str] | None) -> None:
    passed = [name for name in given if name in _PASSED and name not in arm.takes]
    if passed:
        raise ValueError(f"tune has {passed}, which compare itself passes to build; drop it.")
    allowed = [one for one in taken or () if one not in _PASSED]
    unknown = [] if taken is None else [n for n in given if n not in (*allowed, *arm.takes)]
    if unknown:
        raise ValueError(
            f"tune has {unknown} for arm {arm.name!r}, which neither build nor the arm takes: "
            f"build takes {allowed}, the arm {list(arm.takes)}. For hyperparameters of one arm, "
            f"pass tune={{'NAME OF THE ARM': {{...}}}}."
        )
    missing = [name for name in arm.requires if name not in given]
    if missing:
        raise ValueError(
            f"the function of arm {arm.name!r} requires {missing}; give it a default, or pass "
            f"values in tune."
        )


def configurations(grids: Mapping[str, Grid], limit: int | None = None) -> Configurations:
    """Return equally many configurations of each arm.

    An arm with more of them than another tries a sample: the same one for equal grids.

    Args:
        grids: The values to try by arm.
        limit: The most configurations of an arm; None for no limit.

    Raises:
        ValueError: Some arms have several configurations, and others only one.

    Example:
        >>> from composable.comparison.plan.grids import configurations
        >>> configurations({"plain": {"lr": (0.1, 1)}, "other": {"lr": (2, 3)}}).by_arm["other"]
        ({'lr': 2}, {'lr': 3})
    """
    every = {
        arm: tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
        for arm, grid in grids.items()
    }
    sizes = {arm: len(tried) for arm, tried in every.items()}
    least = min(sizes.values())
    notes = []
    if least == 1 and max(sizes.values()) > 1:
        single = [arm for arm, size in sizes.items() if size == 1]
        raise ValueError(
            f"tune leaves {single} a single configuration, and other arms up to "
            f"{max(sizes.values())}. Every arm tries the same number: pass values for all of them, "
            "such as learning rates."
        )
    if max(sizes.values()) > least:
        larger = ", ".join(f"{arm} ({size})" for arm, size in sizes.items() if size > least)
        notes.append(
            f"Every arm tries {least} configurations: a sample of the larger grids of {larger}."
        )
    count = least if limit is None else min(least, max(limit, 1))
    return Configurations({arm: sample(one, count) for arm, one in every.items()}, (*notes,))


def sample(items: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return `count` of the items, drawn by their number alone, in their order.

    A smaller sample is a part of a larger one.
    """
    if len(items) <= count:
        return tuple(items)
    generator = Key(0).fold("tune").generator()
    chosen = torch.randperm(len(items), generator=generator)[:count].tolist()
    return tuple(items[at] for at in sorted(chosen))
