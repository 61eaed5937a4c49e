"""A schedule for each option of parameter groups, such as the learning rate and weight decay."""

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import attrs
from torch import Tensor

from composable.core.time import HasTime

__all__ = ["PerOption", "check_options", "per_option"]

_Schedule = Callable[[HasTime], float]


@attrs.frozen
class PerOption:
    """See `per_option`."""

    schedules: tuple[tuple[str, _Schedule], ...]

    def __call__(self, clock: HasTime) -> float:
        """Raise a TypeError: the value depends on the option."""
        raise TypeError(
            f"{self!r} has a value for each option: pass it to the Trainer, or call "
            "dict(schedule.schedules)[option](clock)."
        )

    def map(self, function: Callable[[_Schedule], _Schedule]) -> "PerOption":
        """Apply a function to all schedules."""
        return PerOption(tuple((name, function(one)) for name, one in self.schedules))


def per_option(schedules: Mapping[str, _Schedule]) -> PerOption:
    """Give each option of an optimizer a schedule of its own, such as its rate and weight decay.

    An option is a number in the parameter groups of the optimizer: "lr", "weight_decay",
    "momentum". In batch k it is its initial value times the schedule at k. The weight decay of
    AdamW, Muon and other optimizers with decoupled decay is multiplied by the learning rate, which
    has its own schedule.

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
    if not isinstance(schedules, Mapping) or not all(isinstance(n, str) for n in schedules):
        raise TypeError(
            f"schedules={schedules!r} must be a mapping of options to schedules, such as "
            "{'weight_decay': linear()}."
        )
    for name, one in schedules.items():
        if not callable(one) or isinstance(one, type) or hasattr(one, "schedules"):
            raise TypeError(f"schedules[{name!r}]={one!r} must be a schedule, such as cosine().")
    return PerOption(tuple(schedules.items()))


def check_options(group: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise a ValueError if a parameter group lacks an option, or it is not a number."""
    for name in options:
        value = group.get(name)
        if not isinstance(value, (Real, Tensor)) or isinstance(value, bool):
            numbers = [key for key, one in group.items() if type(one) in (int, float)]
            raise ValueError(
                f"per_option has a schedule for {name!r}, which is {value!r} in the parameter "
                f"group {group.get('name')!r}: use one of {', '.join(map(repr, numbers))}, and "
                "per_group for groups with different options."
            )
