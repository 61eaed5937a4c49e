"""What a comparison trains: seeds, schedules, and how much of it fits a budget."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from composable.comparison.plan.grids import Settings
from composable.comparison.plan.tuning import Rung, halving
from composable.comparison.records import Trial
from composable.core.time import Time, TimeLike, TimeUnit, check_time

__all__ = [
    "Seeds",
    "Size",
    "check_durations",
    "default_durations",
    "fit_budget",
    "parse_budget",
    "reporting_trials",
]


# --- seeds ---


@attrs.frozen
class Seeds:
    """The seeds of a comparison: those of tuning and those of the A/A arm are others."""

    reporting: tuple[int, ...]
    """The same ones for each arm."""
    repeated: tuple[int, ...]
    """Of the A/A arm."""
    tuning: tuple[int, ...]
    repeated_tuning: tuple[int, ...]

    @classmethod
    def of(cls, seeds: int | Iterable[int], tuning_seeds: int | Iterable[int]) -> "Seeds":
        """Return the seeds for numbers of them, or for given ones.

        More seeds keep those of fewer, so that finished trials are used again.

        Raises:
            TypeError: They are neither integers nor lists of integers.
            ValueError: There are none, one is negative or listed twice, or a tuning seed is a
                reporting seed too.

        Example:
            >>> from composable.comparison.plan.planning import Seeds
            >>> Seeds.of(3, 1)
            Seeds(reporting=(0, 1, 2), repeated=(1000, 1001, 1002), tuning=(2000,),
                  repeated_tuning=(3000,))
        """
        reporting = _seeds("seeds", seeds, 0)
        step = 1000 * (1 + (max(reporting) - min(reporting)) // 1000)
        repeated = tuple(seed + step for seed in reporting)
        tuning = _seeds("tuning_seeds", tuning_seeds, max(repeated) // 1000 * 1000 + 1000)
        if both := sorted(set(tuning) & {*reporting, *repeated}):
            raise ValueError(
                f"tuning_seeds={list(tuning)} has {both}, which are reported ({list(reporting)}, "
                f"and {list(repeated)} for the repeated baseline); pass others."
            )
        far = 1000 * (1 + (max((*tuning, *repeated)) - min(tuning)) // 1000)
        return cls(reporting, repeated, tuning, tuple(seed + far for seed in tuning))


def _seeds(name: str, given: Any, start: int) -> tuple[int, ...]:
    if isinstance(given, bool) or not isinstance(given, (int, Iterable)) or isinstance(given, str):
        raise TypeError(f"{name}={given!r} must be a number of seeds, or a list of seeds.")
    if isinstance(given, int):
        if given < 1:
            raise ValueError(f"{name}={given} must be at least 1.")
        return tuple(range(start, start + given))
    seeds = tuple(given)
    if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in seeds):
        raise TypeError(f"{name}={list(seeds)} must be integers.")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"{name}={list(seeds)} must be at least one seed, none negative or listed twice."
        )
    return seeds


# --- schedules ---


def default_durations(longest: TimeLike) -> tuple[str, ...]:
    """Return a quarter, a half and the whole of a duration.

    Example:
        >>> from composable.comparison.plan.planning import default_durations
        >>> default_durations("10ep"), default_durations("1ep")
        (('2ep', '5ep', '10ep'), ('1ep',))
    """
    whole = check_time("max_duration", longest)
    parts = {whole.value // 4, whole.value // 2, whole.value} - {0}
    return tuple(str(Time(part, whole.unit)) for part in sorted(parts))


def check_durations(
    durations: TimeLike | Iterable[TimeLike], name: str = "durations"
) -> tuple[str, ...]:
    """Return durations in their order, ascending.

    Args:
        durations: One or more lengths of runs.
        name: The name of the argument in messages.

    Raises:
        ValueError: There are none, one is zero or a fraction of a run, or units differ.
    """
    given = [durations] if isinstance(durations, (str, int, Time)) else list(durations)
    times = [check_time(name, one) for one in given]
    if not times or any(one.value == 0 or one.unit is TimeUnit.DURATION for one in times):
        raise ValueError(
            f"{name}={[str(one) for one in times]} must be lengths of runs, such as "
            "['2ep', '4ep', '8ep']."
        )
    if len({one.unit for one in times}) > 1:
        raise ValueError(
            f"{name}={[str(one) for one in times]} must have one unit, so that they can be ordered."
        )
    return tuple(str(one) for one in sorted(set(times)))


def reporting_trials(
    arms: Sequence[str],
    settings: Mapping[str, Settings],
    schedules: Mapping[str, Sequence[str]],
    seeds: Callable[[str], Sequence[int]],
) -> list[Trial]:
    """Return the reported trials, seed by seed: a cut leaves whole seeds.

    Args:
        arms: The arms, in the order of their trials.
        settings: Their settings.
        schedules: The durations of each arm.
        seeds: The seeds of an arm.
    """
    count = max(len(seeds(arm)) for arm in arms)
    return [
        Trial(arm, settings[arm], duration, seeds(arm)[at], "reporting")
        for at in range(count)
        for arm in arms
        for duration in schedules[arm]
        if at < len(seeds(arm))
    ]


# --- the budget ---

_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|sec|m|min|h|hours?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(budget: Any) -> float | None:
    """Return the seconds of a budget: "10min", "2h", "1h30m", "90s", or a number of seconds.

    Raises:
        TypeError: It is of the wrong type.
        ValueError: It cannot be read, or is not positive.

    Example:
        >>> from composable.comparison.plan.planning import parse_budget
        >>> parse_budget("10min"), parse_budget("1h30m"), parse_budget(20)
        (600.0, 5400.0, 20.0)
    """
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise TypeError(f"budget={budget!r} must be a time such as '10min', or seconds.")
    allowed = f"budget={budget!r} must be a time such as '10min', '2h' or '1h30m', above 0."
    if isinstance(budget, str) and (match := _BUDGET.fullmatch(budget.strip())):
        seconds = float(match[1]) * _SECONDS[match[2][0]]
    elif isinstance(budget, str):
        try:
            seconds = Time.parse(budget.strip()).seconds
        except (TypeError, ValueError):
            raise ValueError(allowed) from None
    else:
        seconds = float(budget)
    if not 0 < seconds < math.inf:
        raise ValueError(allowed)
    return seconds


@attrs.frozen
class Size:
    """How much a comparison trains."""

    configurations: int
    """Of each arm; 1 if nothing is tuned."""
    rungs: tuple[Rung, ...]
    seeds: int


def full_size(configurations: int, seeds: int, durations: Sequence[str]) -> Size:
    """Return the size without a budget: every configuration for the longest duration."""
    rungs = (Rung(durations[-1], configurations),) if configurations > 1 else ()
    return Size(configurations, rungs, seeds)


def fit_budget(full: Size, durations: Sequence[str], cost: Callable[[Size], float]) -> Size:
    """Return the largest size whose cost fits.

    It has the largest product of the fraction of the configurations and that of the seeds. With as
    many of both, tuning without halving is preferred. At least two configurations are tried and
    three seeds are run, where there are as many.

    Args:
        full: The size without a budget.
        durations: The schedules, ascending: those of successive halving.
        cost: The estimated seconds of a size, as a fraction of the budget.
    """
    smaller = [full] + [
        Size(configurations, halving(configurations, durations), seeds)
        for configurations in range(min(full.configurations, 2), full.configurations + 1)
        for seeds in range(min(full.seeds, 3), full.seeds + 1)
    ]
    fitting = [size for size in smaller if cost(size) <= 1]
    if not fitting:
        return min(smaller, key=cost)
    # The first of equal ones is kept, and the full size is first.
    return max(fitting, key=lambda size: (size.configurations * size.seeds, size.seeds))
