"""A schedule for each parameter group."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from composable.core.time import HasTime
from composable.optim.schedules import constant

__all__ = ["PerGroup", "per_group"]

_Schedule = Callable[[HasTime], float]
_UNCHANGED = constant()


@attrs.frozen
class PerGroup:
    """See `per_group`."""

    schedules: tuple[tuple[str, _Schedule], ...]
    default: _Schedule = _UNCHANGED

    def __call__(self, clock: HasTime) -> float:
        """Raise a TypeError: the value depends on the group."""
        raise TypeError(
            f"{self!r} has a value for each parameter group: pass it to the Trainer, or call "
            "schedule_of(group)(clock)."
        )

    def schedule_of(self, group: Mapping[str, Any]) -> _Schedule:
        """Return the schedule of a parameter group."""
        return dict(self.schedules).get(group.get("name", ""), self.default)

    def map(self, function: Callable[[_Schedule], _Schedule]) -> "PerGroup":
        """Apply a function to all schedules."""
        changed = tuple((name, function(one)) for name, one in self.schedules)
        return PerGroup(changed, function(self.default))

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


def per_group(schedules: Mapping[str, _Schedule], default: _Schedule = _UNCHANGED) -> PerGroup:
    """Give each parameter group a schedule of its own, by its name.

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
    if not isinstance(schedules, Mapping) or not all(isinstance(n, str) for n in schedules):
        raise TypeError(
            f"schedules={schedules!r} must be a mapping of names of groups to schedules, such as "
            "{'head': cosine()}."
        )
    for name, one in [*((f"schedules[{n!r}]", s) for n, s in schedules.items()),
                      ("default", default)]:  # fmt: skip
        if not callable(one) or isinstance(one, (type, PerGroup)):
            raise TypeError(f"{name}={one!r} must be a schedule, such as cosine().")
    return PerGroup(tuple(schedules.items()), default)
