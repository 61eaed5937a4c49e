"""Tuning: every arm tries as many configurations, and keeps the best by a validation metric."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any, TypeAlias

import attrs
import torch

from composable.comparison.arms import Arm
from composable.comparison.records import Trial, TrialResult
from composable.core.key import Key

__all__ = [
    "Chosen",
    "Configurations",
    "Rung",
    "Settings",
    "configurations",
    "grids_of",
    "halving",
    "hyperparameters",
    "rung_trials",
    "sample",
    "tune",
]

Settings: TypeAlias = Mapping[str, Any]
Grid: TypeAlias = Mapping[str, tuple[Any, ...]]

_PASSED = ("algorithms", "seed", "optimizers", "schedulers", "max_duration", "arm", "duration")


@attrs.frozen
class Configurations:
    """The settings to try, by the name of each arm: equally many for all."""

    by_arm: Mapping[str, tuple[Settings, ...]]
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of configurations of every arm."""
        return min(map(len, self.by_arm.values()))


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
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    return tuple(one.name for one in parameters if one.name not in required)


def grids_of(
    tune: Mapping[str, Any] | None, arms: Sequence[Arm], taken: Sequence[str] | None
) -> dict[str, Grid]:
    """Return the values to try by arm, given those for all arms, and by the name of an arm."""
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
            f"tune has {unknown} for arm {arm.name!r}, which neither the function nor the arm "
            f"takes: it takes {allowed}, the arm {list(arm.takes)}. For hyperparameters of one "
            f"arm, pass tune={{'NAME OF THE ARM': {{...}}}}."
        )
    missing = [name for name in arm.requires if name not in given]
    if missing:
        raise ValueError(
            f"the function of arm {arm.name!r} requires {missing}; give it a default, or pass "
            f"values in tune."
        )


def configurations(grids: Mapping[str, Grid]) -> Configurations:
    """Return equally many configurations of each arm: a sample of larger grids.

    Example:
        >>> from composable.comparison.tuning import configurations
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
    return Configurations({arm: sample(one, least) for arm, one in every.items()}, (*notes,))


def sample(items: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return `count` of the items, drawn by their number alone, in their order.

    A smaller sample is a part of a larger one.
    """
    if len(items) <= count:
        return tuple(items)
    generator = Key(0).fold("tune").generator()
    chosen = torch.randperm(len(items), generator=generator)[:count].tolist()
    return tuple(items[at] for at in sorted(chosen))


# --- successive halving ---

Run: TypeAlias = Callable[[Sequence[Trial]], Sequence[TrialResult | None]]
"""Trains trials, and returns a result for each; None for one that was not run."""
Score: TypeAlias = Callable[[TrialResult | None], float]
"""The value of a result, higher is better; -inf for one without a result."""
Scale: TypeAlias = Callable[[str, str], str]
"""The duration in which an arm trains for the seconds of the baseline."""


@attrs.frozen
class Rung:
    """A round of tuning: the remaining configurations are trained for one duration."""

    duration: str
    count: int
    """The number of configurations of each arm that enter it."""


@attrs.frozen
class Chosen:
    """The settings that tuning selects."""

    settings: Mapping[str, Settings]
    """By arm."""
    notes: tuple[str, ...] = ()


def halving(count: int, durations: Sequence[str]) -> tuple[Rung, ...]:
    """Return rounds of which each keeps the better half of the configurations.

    The last round has the longest duration, and the earlier ones the next shorter.

    Example:
        >>> from composable.comparison.tuning import halving
        >>> [(rung.duration, rung.count) for rung in halving(8, ["1ep", "2ep", "4ep"])]
        [('1ep', 8), ('2ep', 4), ('4ep', 2)]
    """
    if count < 2:
        return ()
    used = durations[-math.ceil(math.log2(count)) :]
    return tuple(Rung(one, math.ceil(count / 2**at)) for at, one in enumerate(used))


def rung_trials(
    tried: Mapping[str, Sequence[Settings]],
    duration: str,
    seeds: Mapping[str, Sequence[int]],
    scale: Scale,
) -> list[Trial]:
    """Return the trials of a round, in turn for all arms: if it is cut short, all had as many."""
    by_arm = [
        [
            Trial(arm, one, scale(arm, duration), seed, "tuning")
            for one in settings
            for seed in seeds[arm]
        ]
        for arm, settings in tried.items()
    ]
    return [trial for turn in zip_longest(*by_arm) for trial in turn if trial is not None]


def tune(
    tried: Mapping[str, Sequence[Settings]],
    rungs: Sequence[Rung],
    seeds: Mapping[str, Sequence[int]],
    run: Run,
    score: Score,
    scale: Scale = lambda arm, duration: duration,
) -> Chosen:
    """Choose the settings of each arm: every round keeps those with the best mean score.

    Of equal ones the earlier is kept. If a round is cut short, the settings are chosen by what it
    has finished, and then by the round before.
    """
    left = {arm: list(settings) for arm, settings in tried.items()}
    notes: list[str] = []
    for rung in rungs:
        left = {arm: settings[: rung.count] for arm, settings in left.items()}
        trials = rung_trials(left, rung.duration, seeds, scale)
        results = run(trials)
        done = list(zip(trials, results, strict=True))
        left = {
            arm: sorted(settings, key=lambda one, arm=arm: -_mean(arm, one, done, score))  # type: ignore[misc]
            for arm, settings in left.items()
        }
        notes += _without_result(left, done, score, rung.duration)
        if missing := sum(result is None for result in results):
            notes.append(
                f"Tuning was cut short: {missing} of {len(trials)} trials of a round of "
                f"{rung.duration} were not run."
            )
            break
    return Chosen({arm: settings[0] for arm, settings in left.items()}, tuple(notes))


def _mean(
    arm: str, settings: Settings, done: Sequence[tuple[Trial, TrialResult | None]], score: Score
) -> float:
    """Return the mean score of one configuration; -inf unless all seeds have a result."""
    scores = [
        score(result) for trial, result in done if trial.arm == arm and trial.settings == settings
    ]
    mean = sum(scores) / len(scores)
    return mean if mean == mean else -math.inf


def _without_result(
    arms: Mapping[str, object],
    done: Sequence[tuple[Trial, TrialResult | None]],
    score: Score,
    duration: str,
) -> list[str]:
    """Return a note for each arm whose trials all failed or diverged."""
    notes = []
    for arm in arms:
        ran = [result for trial, result in done if trial.arm == arm and result is not None]
        if ran and all(score(result) == -math.inf for result in ran):
            errors = sorted({one.error for one in ran if one.error})
            why = f": {errors[0]}" if errors else "."
            notes.append(f"{arm}: no tuning trial of {duration} has a result{why}")
    return notes
