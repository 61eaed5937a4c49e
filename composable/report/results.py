"""The results of groups of runs: their best values, mean and spread."""

import statistics
from collections.abc import Sequence

import attrs

from composable.core.result_names import known_mode
from composable.report.chart_data import shown_metrics
from composable.report.comparison import RunComparison
from composable.report.recorded_run import RecordedRun

__all__ = ["GroupResult", "best_value", "group_results", "mode_of_metric", "result_names"]


def result_names(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the names of the results of evaluations, in the order of the page."""
    return [name for name in shown_metrics(runs) if name.startswith("metrics/")]


def mode_of_metric(name: str) -> str | None:
    """Return whether a lower ("min") or a higher ("max") value is better, if the name tells."""
    return known_mode(name.removeprefix("metrics/"), None)


def best_value(run: RecordedRun, name: str) -> float | None:
    """Return the best value of a result, or the last one if its name does not tell."""
    curve, mode = run.curves.get(name), mode_of_metric(name)
    if curve is None or not len(curve):
        return None
    if mode is None:
        return curve.values[-1]
    return (min if mode == "min" else max)((v for _, v in curve.finite()), default=None)


@attrs.frozen
class GroupResult:
    """The best values of a result in the runs of a group."""

    group: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return statistics.mean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the runs; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def group_results(comparison: RunComparison, name: str) -> list[GroupResult]:
    """Return the results of the groups that have any, the best one first if the name tells."""
    found = []
    for index, group in enumerate(comparison.groups):
        values = [best_value(comparison.runs[run], name) for run in group]
        known = tuple(value for value in values if value is not None)
        if known:
            found.append(GroupResult(index, known))
    mode = mode_of_metric(name)
    return sorted(found, key=lambda one: one.mean, reverse=mode == "max") if mode else found
