"""Successive halving: the settings of each arm, chosen by a validation metric."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

import attrs

from composable.comparison.plan.grids import Settings
from composable.comparison.records import Trial, TrialResult

__all__ = ["Chosen", "Run", "Rung", "Score", "halving", "rung_trials", "tune"]

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

    Args:
        count: The number of configurations.
        durations: The durations to use, ascending.

    Example:
        >>> from composable.comparison.plan.tuning import halving
        >>> [(rung.duration, rung.count) for rung in halving(8, ["1ep", "2ep", "4ep"])]
        [('1ep', 8), ('2ep', 4), ('4ep', 2)]
        >>> [(rung.duration, rung.count) for rung in halving(3, ["1ep", "2ep", "4ep"])]
        [('2ep', 3), ('4ep', 2)]
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
    """Return the trials of a round, in turn for all arms.

    If they are cut short, every arm has had as many.
    """
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

    Args:
        tried: The settings to try, by arm: equally many for all.
        rungs: The rounds, with growing durations.
        seeds: The tuning seeds, by arm.
        run: Trains the trials of a round.
        score: The value of a result.
        scale: The duration of an arm for that of the round.
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
