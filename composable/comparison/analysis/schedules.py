"""The reporting trials of a study by arm, schedule and seed."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, log
from statistics import fmean

import attrs

from composable.comparison.analysis.times import Curve
from composable.comparison.records import Evaluation, Protocol, StepCost, Study, TrialResult
from composable.comparison.trials.costs import seconds_until

__all__ = ["Schedule", "curve_of", "first_crossings", "schedules_of", "seconds_at"]


@attrs.frozen
class Schedule:
    """The runs of an arm on one schedule."""

    duration: str
    seconds: float
    cost: StepCost | None
    """None: the times are the trials' own."""
    runs: Mapping[int, TrialResult]
    """By seed."""
    finals: Mapping[int, float | None]
    """The final results by seed; None for a run that did not finish."""

    @property
    def complete(self) -> bool:
        """Whether all runs finished."""
        return None not in self.finals.values()


def schedules_of(study: Study) -> dict[str, tuple[Schedule, ...]]:
    """Return the schedules of each arm, from the shortest to the longest.

    Raises:
        ValueError: Two results are of the same run, or no run logged the metric.
    """
    runs: dict[tuple[str, str], dict[int, TrialResult]] = {}
    for result in study.results:
        trial = result.trial
        if trial.purpose != "reporting":
            continue
        seeds = runs.setdefault((trial.arm, trial.duration), {})
        if trial.seed in seeds:
            raise ValueError(
                f"study has two reporting results of arm {trial.arm!r}, duration "
                f"{trial.duration!r} and seed {trial.seed}: each run counts once."
            )
        seeds[trial.seed] = result
    _check_metric(study.protocol, [run for seeds in runs.values() for run in seeds.values()])
    return {
        arm: tuple(
            _schedule(study, arm, duration, runs[arm, duration])
            for duration in study.protocol.durations_of(arm)
            if (arm, duration) in runs
        )
        for arm in study.protocol.arms
    }


def first_crossings(
    schedule: Schedule, metric: str, level: float, sign: int
) -> dict[int, float | None]:
    """Return the seconds at which each run first passes a level.

    The metric is linear between two evaluations. A run whose first evaluation passes has reached
    the level at that evaluation.

    Args:
        schedule: The runs.
        metric: The logged name.
        level: The level to pass.
        sign: 1 where higher results are better, -1 where lower ones are.
    """
    return {
        seed: _crossing(schedule, run, metric, level, sign) for seed, run in schedule.runs.items()
    }


def _crossing(
    schedule: Schedule, run: TrialResult, metric: str, level: float, sign: int
) -> float | None:
    points = [
        (seconds_at(schedule, run, one), sign * one.metrics[metric])
        for one in run.curve
        if isfinite(one.metrics.get(metric, float("nan")))
    ]
    if run.outcome != "finished" or not points:
        return None
    if points[0][1] >= sign * level:
        return points[0][0]
    for (start, before), (end, after) in pairwise(points):
        if after >= sign * level:
            return start + (end - start) * (sign * level - before) / (after - before)
    return None


def seconds_at(schedule: Schedule, run: TrialResult, evaluation: Evaluation) -> float:
    """Return the seconds of training until an evaluation of a run."""
    if schedule.cost is None:
        return evaluation.seconds
    return seconds_until(schedule.cost, run.batches, min(1.0, evaluation.progress))


def _schedule(study: Study, arm: str, duration: str, runs: dict[int, TrialResult]) -> Schedule:
    metric = study.protocol.metric
    order = sorted(runs)
    cost = _cost(study, arm, duration)
    return Schedule(
        duration,
        _length([runs[seed] for seed in order], cost),
        cost,
        {seed: runs[seed] for seed in order},
        {seed: _final(runs[seed], metric) for seed in order},
    )


def _length(runs: Sequence[TrialResult], cost: StepCost | None) -> float:
    finished = [run for run in runs if run.outcome == "finished"] or runs
    if cost is None:
        return fmean(run.seconds.training for run in finished)
    return seconds_until(cost, max(run.batches for run in finished), 1.0)


def _cost(study: Study, arm: str, duration: str) -> StepCost | None:
    """Return the arm's cost on this schedule, else on another; the A/A arm is the baseline."""
    protocol = study.protocol
    costs = [one for one in study.costs if one.arm == arm]
    if not costs and arm == protocol.repeated:
        costs = [one for one in study.costs if one.arm == protocol.baseline]
    return min(costs, key=lambda one: (one.duration != duration, one.duration), default=None)


def _final(run: TrialResult, metric: str) -> float | None:
    if run.outcome != "finished" or not run.curve:
        return None
    value = run.curve[-1].metrics.get(metric, float("nan"))
    return value if isfinite(value) else None


def _check_metric(protocol: Protocol, runs: Sequence[TrialResult]) -> None:
    finished = [run for run in runs if run.outcome == "finished"]
    names = {name for run in finished for one in run.curve for name in one.metrics}
    if finished and protocol.metric not in names:
        raise ValueError(
            f"metric={protocol.metric!r} must be the name of a logged result: one of "
            f"{sorted(names)}."
        )


def curve_of(schedules: Sequence[Schedule], seeds: Sequence[int], sign: int) -> Curve | None:
    """Return the final results of some seeds, better ones higher, without incomplete schedules.

    A schedule on which a run did not finish counts as one that does not reach the target.
    """
    kept = {
        log(one.seconds): tuple(sign * (one.finals[seed] or 0.0) for seed in seeds)
        for one in schedules
        if one.complete and set(seeds) <= set(one.finals) and one.seconds > 0
    }
    return Curve(tuple(sorted(kept)), tuple(kept[time] for time in sorted(kept))) if kept else None
