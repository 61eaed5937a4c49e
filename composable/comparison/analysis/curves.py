"""The reporting trials of a study by arm, schedule and seed, and the curves through them."""

from collections.abc import Mapping, Sequence
from math import isfinite, log
from statistics import fmean, stdev

import attrs

from composable.comparison.analysis.distance import Curve
from composable.comparison.analysis.findings import Estimate
from composable.comparison.analysis.statistics import Part, cost_ratio, import_scipy
from composable.comparison.cost import seconds_until
from composable.comparison.records import Protocol, StepCost, Study, TrialResult

__all__ = ["Schedule", "compare_step_costs", "curves_of", "schedules_of"]


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

    @property
    def steps(self) -> int:
        """The number of steps of the longest run."""
        return max(run.batches for run in self.runs.values())


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


def curves_of(
    baseline: Sequence[Schedule], arm: Sequence[Schedule], sign: int
) -> tuple[Curve | None, Curve | None, bool]:
    """Return the curves of the baseline and of an arm, and whether their seeds are paired.

    Seeds are paired if both have at least two of them in common: then the curves have those only.
    A schedule on which a run did not finish is not on a curve, and neither is one without cost.

    Args:
        baseline: The schedules of the baseline.
        arm: Those of the arm.
        sign: 1 where higher results are better, -1 where lower ones are.
    """
    own = [_seeds(baseline), _seeds(arm)]
    common = [seed for seed in own[0] if seed in own[1]]
    paired = len(common) > 1
    chosen = [common, common] if paired else own
    both = zip((baseline, arm), chosen, strict=True)
    base, other = (_curve(schedules, seeds, sign) for schedules, seeds in both)
    return base, other, paired


def _complete(schedules: Sequence[Schedule]) -> list[Schedule]:
    return [one for one in schedules if one.complete and one.seconds > 0]


def _seeds(schedules: Sequence[Schedule]) -> list[int]:
    """Return the seeds that all complete schedules have."""
    seeds = [set(one.finals) for one in _complete(schedules)]
    return sorted(set.intersection(*seeds)) if seeds else []


def _curve(schedules: Sequence[Schedule], seeds: Sequence[int], sign: int) -> Curve | None:
    """Return the curve; None with fewer than two schedules or two seeds."""
    _, np = import_scipy()
    by_cost = {
        log(one.seconds): [sign * (one.finals[seed] or 0.0) for seed in seeds]
        for one in _complete(schedules)
    }
    costs = sorted(by_cost)
    if len(costs) < 2 or len(seeds) < 2:
        return None
    return Curve(np.asarray(costs), np.asarray([by_cost[one] for one in costs]))


def compare_step_costs(
    baseline: Sequence[Schedule], arm: Sequence[Schedule]
) -> tuple[Estimate | None, Part]:
    """Return the ratio of step costs, and the error of the log ratio of times."""
    base, other = baseline[-1], arm[-1]
    if base.cost is None or other.cost is None:
        return None, _error_of_seconds(base, other)
    if base.cost == other.cost:
        return Estimate(1.0, 1.0, 1.0, 1.0, len(other.cost.seconds[0])), Part(0.0, 1)
    steps = [one.seconds / max(one.steps, 1) for one in (base, other)]
    if not all(steps):  # no run made a step
        return None, Part(0.0, 1)
    return cost_ratio(base.cost.seconds, other.cost.seconds, steps[1] / steps[0])


def _error_of_seconds(baseline: Schedule, arm: Schedule) -> Part:
    """Return the error of the log ratio of the trials' own seconds."""
    both = [[log(one) for one in _own_seconds(schedule)] for schedule in (baseline, arm)]
    known = [] if baseline is arm else [logs for logs in both if len(logs) > 1]
    variance = sum(stdev(logs) ** 2 / len(logs) for logs in known)
    return Part(variance, min((len(logs) - 1 for logs in known), default=1))


def _own_seconds(schedule: Schedule) -> list[float]:
    runs = [run for run in schedule.runs.values() if run.outcome == "finished"]
    return [run.seconds.training for run in runs if run.seconds.training > 0]
