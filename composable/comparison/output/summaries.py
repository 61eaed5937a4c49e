"""Counts and means over the trials of a study."""

from collections.abc import Sequence
from statistics import fmean

from composable.comparison.records import Seconds, Study, TrialResult

__all__ = ["failures", "final_result", "mean_seconds", "num_trials", "trials_of"]


def trials_of(
    study: Study, arm: str, purpose: str, duration: str | None = None
) -> list[TrialResult]:
    """Return the trials of an arm.

    Args:
        study: The study.
        arm: The name of the arm.
        purpose: "tuning" or "reporting".
        duration: Their schedule. Default: all.
    """
    return [
        result
        for result in study.results
        if result.trial.arm == arm
        and result.trial.purpose == purpose
        and duration in (None, result.trial.duration)
    ]


def final_result(result: TrialResult, metric: str) -> float | None:
    """Return the result of the last evaluation of a finished trial."""
    if result.outcome != "finished" or not result.curve:
        return None
    return result.curve[-1].metrics.get(metric)


def failures(study: Study) -> list[TrialResult]:
    """Return the trials that did not finish."""
    return [result for result in study.results if result.outcome != "finished"]


def num_trials(study: Study, purpose: str) -> int:
    """Return the number of tuning or reporting trials."""
    return sum(result.trial.purpose == purpose for result in study.results)


def mean_seconds(results: Sequence[TrialResult]) -> Seconds | None:
    """Return the mean seconds by part of the finished trials; None without one."""
    finished = [result.seconds for result in results if result.outcome == "finished"]
    if not finished:
        return None
    return Seconds(
        setup=fmean(one.setup for one in finished),
        warmup=fmean(one.warmup for one in finished),
        training=fmean(one.training for one in finished),
        evaluation=fmean(one.evaluation for one in finished),
    )
