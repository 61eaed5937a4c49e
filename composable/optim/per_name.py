"""Schedules for each parameter group, and for each option of groups such as the weight decay."""

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar

import attrs
from torch import Tensor
from typing_extensions import Self

from composable.core.time import HasTime
from composable.optim.schedules import constant

_Schedule = Callable[[HasTime], float]
_UNCHANGED = constant()
UPDATE = "update"
"""The key of a parameter group that names its update."""


@attrs.frozen
class _ByName:
    """Schedules by the names of what they set."""

    schedules: tuple[tuple[str, _Schedule], ...]
    what: ClassVar[str]
    one: ClassVar[str]
    """The expression of one of the schedules."""

    def __call__(self, clock: HasTime) -> float:
        """Raise a TypeError: the value depends on the name."""
        raise TypeError(
            f"{self!r} has a value for each {self.what}: pass it to the Trainer, or call "
            f"{self.one}(clock)."
        )

    def map(self, function: Callable[[_Schedule], _Schedule]) -> Self:
        """Apply a function to all schedules."""
        changed = tuple((name, function(one)) for name, one in self.schedules)
        return attrs.evolve(self, schedules=changed)


@attrs.frozen
class PerGroup(_ByName):
    """See `per_group`."""

    default: _Schedule = _UNCHANGED
    what, one = "parameter group", "schedule_of(group)"

    def schedule_of(self, group: Mapping[str, Any]) -> _Schedule:
        """Return the schedule of a parameter group."""
        return dict(self.schedules).get(group.get("name", ""), self.default)

    def map(self, function: Callable[[_Schedule], _Schedule]) -> Self:
        """Apply a function to all schedules."""
        return attrs.evolve(super().map(function), default=function(self.default))

    def check_names(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Raise a ValueError if a schedule has no group of its name."""
        names = list(dict.fromkeys(group.get("name") for group in groups))
        unknown = [name for name, _ in self.schedules if name not in names]
        if unknown:
            raise ValueError(
                f"per_group has a schedule for the group {unknown[0]!r}, and the parameter groups "
                f"are named {', '.join(map(repr, names))}: name groups by their key 'name', as in "
                f"{{'params': [...], 'name': {unknown[0]!r}}}."
            )


@attrs.frozen
class PerOption(_ByName):
    """See `per_option`."""

    what, one = "option", "dict(schedule.schedules)[option]"


def per_group(schedules: Mapping[str, _Schedule], default: _Schedule = _UNCHANGED) -> PerGroup:
    """Give each parameter group a separate schedule, by its name.

    The name of a group is its key "name": `{"params": [...], "name": "head"}`. Groups of
    `composable.optim.role_groups`, `muon_groups` and `layerwise_groups` have names.

    Args:
        schedules: The schedules, by the names of groups. One may be of several options:
            `per_option`.
        default: The schedule of all other groups. By default, their learning rates are constant.

    Returns:
        A value for `schedulers=` of the `Trainer`. Alone, it has no value at a time:
        `schedule_of(group)` returns the schedule of a group.

    Raises:
        TypeError: An argument is of the wrong type. (The `Trainer` raises a ValueError if no group
            has one of the names.)

    Example:
        >>> from composable import Clock
        >>> from composable.optim import cosine, linear, per_group
        >>> schedule = per_group({"head": linear()}, default=cosine())
        >>> schedule.schedule_of({"name": "head"}) == linear()
        True
    """
    _check_names(schedules, "names of groups", "{'head': cosine()}")
    for name, schedule in schedules.items():
        _check_schedule(f"schedules[{name!r}]", schedule, PerGroup)
    _check_schedule("default", default, PerGroup)
    return PerGroup(tuple(schedules.items()), default)


def per_option(schedules: Mapping[str, _Schedule]) -> PerOption:
    """Give each option of an optimizer, such as its rate and weight decay, a separate schedule.

    An option is a number in the parameter groups of the optimizer: "lr", "weight_decay",
    "momentum". In batch k it is its initial value times the schedule at k. The weight decay of
    AdamW, Muon and other optimizers with decoupled decay is multiplied by the learning rate, which
    has a separate schedule.

    Args:
        schedules: The schedules, by the names of options.

    Returns:
        A value for `schedulers=` of the `Trainer`, or for one group in `per_group`.

    Raises:
        TypeError: An argument is of the wrong type. (The `Trainer` raises a ValueError if a group
            has no such option.)

    Example:
        >>> from composable.optim import cosine, linear, per_option
        >>> schedulers = per_option({"lr": cosine(0.1), "weight_decay": linear()})
        >>> [name for name, schedule in schedulers.schedules]
        ['lr', 'weight_decay']
    """
    _check_names(schedules, "options", "{'weight_decay': linear()}")
    for name, schedule in schedules.items():
        _check_schedule(f"schedules[{name!r}]", schedule, _ByName)
    return PerOption(tuple(schedules.items()))


def _check_names(schedules: Any, names: str, example: str) -> None:
    if not isinstance(schedules, Mapping) or not all(isinstance(n, str) for n in schedules):
        raise TypeError(
            f"schedules={schedules!r} must be a mapping of {names} to schedules, such as {example}."
        )


def _check_schedule(name: str, value: Any, refused: type) -> None:
    if not callable(value) or isinstance(value, (type, refused)):
        raise TypeError(f"{name}={value!r} must be a schedule, such as cosine().")


def check_options(group: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise a ValueError if a parameter group lacks an option, or it is not a number."""
    for name in options:
        value = group.get(name)
        if isinstance(value, bool) or not isinstance(value, (Real, Tensor)):
            numbers = [key for key, one in group.items() if type(one) in (int, float)]
            raise ValueError(
                f"per_option has a schedule for {name!r}, which is {value!r} in the parameter "
                f"group {group.get('name')!r}: use one of {', '.join(map(repr, numbers))}, and "
                "per_group for groups with different options."
            )


def update_of(optimizer: Any) -> Any:
    """Return the name of the update that an optimizer belongs to, or None."""
    return optimizer.param_groups[0].get(UPDATE)
