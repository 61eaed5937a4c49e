"""The points of a time-to-quality plot."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean

import attrs

from composable.comparison.analysis.findings import Analysis, ArmAnalysis, Quality
from composable.comparison.analysis.schedules import Schedule, schedules_of, seconds_at
from composable.comparison.output.wording import chosen_quality
from composable.comparison.records import Evaluation, Study, TrialResult

__all__ = ["Band", "PlottedArm", "clearest", "plotted_arms", "quality_limits"]

_MOST = 10  # arms in a plot: eight colors, the baseline and the A/A arm
_STEPS = 16  # between two schedules


@attrs.frozen
class Band:
    """A metric during training: the mean, the lowest and the highest over the seeds."""

    seconds: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@attrs.frozen
class PlottedArm:
    """What a plot shows of one arm."""

    found: ArmAnalysis
    duration: str
    """The schedule of the curve."""
    curve: Band
    runs: tuple[int, int]
    """How many runs of the schedule finished, and how many there are."""
    finals: tuple[Quality, ...]
    """The schedules on which all runs finished, by their time."""

    @property
    def end(self) -> tuple[float, float]:
        """The last point of the curve."""
        return self.curve.seconds[-1], self.curve.mean[-1]

    @property
    def label_point(self) -> tuple[float, float]:
        """The point to label: the final result of the longest schedule."""
        return self.interpolated()[-1] if self.finals else self.end

    def interpolated(self) -> list[tuple[float, float]]:
        """Return the mean final result by seconds, linear in log time between two schedules."""
        points = [(one.seconds, one.mean) for one in self.finals if one.mean is not None]
        line = points[:1]
        for (start, before), (end, after) in pairwise(points):
            for step in range(1, _STEPS + 1):
                at = step / _STEPS
                line.append((start * (end / start) ** at, before + (after - before) * at))
        return line


def plotted_arms(study: Study, analysis: Analysis) -> list[PlottedArm]:
    """Return the arms that have a curve, in the order of the analysis."""
    schedules = schedules_of(study)
    found = (_plotted(arm, schedules.get(arm.arm, ()), analysis.metric) for arm in analysis.arms)
    return [arm for arm in found if arm is not None]


def clearest(arms: Sequence[PlottedArm], most: int = _MOST) -> list[PlottedArm]:
    """Return the arms to draw if there are too many: those with the smallest p values.

    The baseline and the A/A arm are always among them. The order is kept.

    Args:
        arms: The arms with a curve.
        most: The number of arms to draw.
    """
    references = [arm for arm in arms if arm.found.role != "arm"]
    others = sorted((arm for arm in arms if arm.found.role == "arm"), key=_evidence)
    kept = [*references, *others[: max(0, most - len(references))]]
    return [arm for arm in arms if arm in kept]


def _evidence(arm: PlottedArm) -> tuple[float, float]:
    ratio = arm.found.time.ratio
    speedup = ratio.value if ratio is not None and ratio.value is not None else 0.0
    return (inf if arm.found.p is None else arm.found.p), -speedup


def _plotted(arm: ArmAnalysis, schedules: Sequence[Schedule], metric: str) -> PlottedArm | None:
    quality = chosen_quality(arm)
    schedule = next(
        (one for one in schedules if quality and one.duration == quality.duration), None
    )
    curve = _band(schedule, metric) if schedule else None
    if schedule is None or curve is None:
        return None
    finals = sorted(
        (one for one in arm.qualities if one.mean is not None and one.seconds > 0),
        key=lambda one: one.seconds,
    )
    finished = sum(run.outcome == "finished" for run in schedule.runs.values())
    runs = finished, len(schedule.runs)
    return PlottedArm(arm, schedule.duration, curve, runs, tuple(finals))


def _band(schedule: Schedule, metric: str) -> Band | None:
    """Return the curve over the finished runs, where all of them have a finite result."""
    runs = [run for run in schedule.runs.values() if run.outcome == "finished"]
    by_run = [_results(run, metric) for run in runs]
    shared = sorted(set.intersection(*map(set, by_run))) if by_run else []
    if not shared:
        return None
    values = [[float(run[batch].metrics[metric]) for run in by_run] for batch in shared]
    seconds = [
        fmean(
            seconds_at(schedule, run, by_batch[batch])
            for run, by_batch in zip(runs, by_run, strict=True)
        )
        for batch in shared
    ]
    return Band(
        tuple(seconds),
        tuple(map(fmean, values)),
        tuple(map(min, values)),
        tuple(map(max, values)),
    )


def _results(run: TrialResult, metric: str) -> dict[int, Evaluation]:
    return {one.batch: one for one in run.curve if isfinite(one.metrics.get(metric, inf))}


def quality_limits(
    arms: Iterable[PlottedArm], analysis: Analysis, baseline: str
) -> tuple[float, float]:
    """Return the range of the metric to plot: around the target and the final results.

    The first results of a curve, and arms that are much worse than the baseline, would compress
    the range in which arms differ.
    """
    plotted = list(arms)
    sign = 1 if analysis.mode == "max" else -1
    shown = [analysis.target.value, *(bound for arm in plotted for bound in _best(arm, sign))]
    for arm in plotted:
        if arm.found.arm == baseline:
            shown += arm.curve.mean[len(arm.curve.mean) // 3 :]
            shown += [one.mean for one in arm.finals if one.mean is not None]
    best = max(shown, key=lambda value: sign * value)
    worst = min(shown, key=lambda value: sign * value)
    span = abs(best - worst) or abs(best) * 0.1 or 1.0
    ends = best + sign * 0.08 * span, worst - sign * 0.12 * span
    return min(ends), max(ends)


def _best(arm: PlottedArm, sign: int) -> list[float]:
    """Return the better bound of each final result, or the result itself without an interval."""
    bounds = ((one.high if sign > 0 else one.low, one.mean) for one in arm.finals)
    best = (mean if bound is None else bound for bound, mean in bounds)
    return [value for value in best if value is not None]
