"""Choose settings by the results of tuning trials, and look for values at a grid's edge."""

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from statistics import fmean
from typing import Any, Literal

from composable.comparison.records import Protocol, TrialResult

__all__ = ["choose_settings", "edge_notes"]


def choose_settings(
    results: Iterable[TrialResult], metric: str, mode: Literal["min", "max"]
) -> dict[str, Any]:
    """Return the settings of one arm with the best mean final result over the tuning seeds.

    Ties go to the settings that come first. A run that did not finish, or whose result is not
    finite, makes its settings the worst.

    Args:
        results: The tuning results of one arm; others are ignored.
        metric: The logged name of the result.
        mode: Whether a smaller or a greater result is better.

    Returns:
        The settings.

    Raises:
        ValueError: There is no tuning result, or every setting has a run that did not finish.

    Example:
        >>> from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult
        >>> from composable.comparison.analysis.settings import choose_settings
        >>> def result(lr, loss):
        ...     trial = Trial("plain", {"lr": lr}, "9ba", 0, "tuning")
        ...     curve = (Evaluation(9, 1.0, 1.0, {"loss": loss}),)
        ...     return TrialResult(trial, "finished", 9, Seconds(0, 0, 1, 0), curve)
        >>> choose_settings([result(0.1, 2.0), result(0.2, 1.5)], "loss", "min")
        {'lr': 0.2}
    """
    sign = 1 if mode == "max" else -1
    settings: dict[str, Mapping[str, Any]] = {}
    scores: dict[str, list[float]] = {}
    for result in results:
        if result.trial.purpose != "tuning":
            continue
        name = repr(sorted(result.trial.settings.items()))
        settings.setdefault(name, result.trial.settings)
        scores.setdefault(name, []).append(_score(result, metric, sign))
    best = max(scores, key=lambda name: fmean(sorted(scores[name])), default=None)
    if best is None or fmean(scores[best]) == -inf:
        raise ValueError(
            f"results must have finished tuning trials with the metric {metric!r}; of "
            f"{len(scores)} settings, none finished on all of its seeds."
        )
    return dict(settings[best])


def edge_notes(protocol: Protocol, arm: str) -> list[str]:
    """Warn where a chosen value lies at the edge of its grid of numbers."""
    notes = []
    for name, values in protocol.grids.get(arm, {}).items():
        chosen = protocol.chosen.get(arm, {}).get(name)
        numbers = sorted({value for value in values if _is_number(value)})
        if len(numbers) < max(2, len(set(map(repr, values)))) or chosen not in numbers:
            continue
        if chosen in (numbers[0], numbers[-1]):
            end, beyond = ("lowest", "lower") if chosen == numbers[0] else ("highest", "higher")
            notes.append(
                f"{name}={chosen!r} is the {end} value that was tried: a {beyond} one may be better"
            )
    return notes


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _score(result: TrialResult, metric: str, sign: int) -> float:
    if result.outcome != "finished" or not result.curve:
        return -inf
    value = sign * result.curve[-1].metrics.get(metric, float("nan"))
    return value if isfinite(value) else -inf
