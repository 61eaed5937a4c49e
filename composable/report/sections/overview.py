"""The overview: a row for each group of runs, and one for each run."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from composable.report.comparison import RunComparison
from composable.report.curves import Curve
from composable.report.recorded_run import RecordedRun
from composable.report.results import best_value, mode_of_metric, result_names
from composable.report.sections._common import format_number, format_span

__all__ = ["overview"]

_MOST_RESULTS = 5
_Read: TypeAlias = Callable[[RecordedRun], float | None]


class _Cell(NamedTuple):
    column: str
    text: str
    value: float | None
    best: bool = False


def overview(comparison: RunComparison) -> dict[str, list[Any]]:
    """List the groups and the runs: status, duration, throughput, the last loss, the results."""
    grouped = len(comparison.groups) < len(comparison.runs)
    return {
        "groups": _rows(comparison, comparison.groups) if grouped else [],
        "runs": _rows(comparison, [(index,) for index in range(len(comparison.runs))]),
    }


def _rows(comparison: RunComparison, groups: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Describe groups of runs by the mean in each column, and the spread of the results."""
    grouped = [[comparison.runs[run] for run in group] for group in groups]
    names = result_names(comparison.runs)[:_MOST_RESULTS]
    columns: dict[str, _Read] = {
        **_COLUMNS,
        **{name: partial(best_value, name=name) for name in names},
    }
    values = {name: [_known(map(read, runs)) for runs in grouped] for name, read in columns.items()}
    best = {name: _best(name, values[name]) for name in names}
    return [
        {
            "members": group,
            "statuses": Counter(run.status for run in runs),
            "rest": _rest(runs[0]),
            "error": runs[0].error,
            "cells": [_cell(name, values[name][row], best.get(name)) for name in columns],
        }
        for row, (group, runs) in enumerate(zip(groups, grouped, strict=True))
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _best(name: str, values: Sequence[Sequence[float]]) -> float | None:
    """Return the best mean of several, if the name tells."""
    means, mode = [statistics.mean(some) for some in values if some], mode_of_metric(name)
    return (min if mode == "min" else max)(means) if mode and len(means) > 1 else None


def _rest(run: RecordedRun) -> str:
    """Continue the number of batches of a run by what was skipped, and the whole duration."""
    whole = run.configuration.get("max_duration")
    skipped = f", {run.num_skipped} skipped" if run.num_skipped else ""
    return skipped + (f" of {whole}" if isinstance(whole, str) else "")


def _cell(name: str, values: Sequence[float], best: float | None) -> _Cell:
    mean = statistics.mean(values) if values else None
    text = _FORMATS.get(name, format_number)(mean)
    if name not in _COLUMNS and len(values) > 1 and all(map(math.isfinite, values)):
        text += f" ± {format_number(statistics.stdev(values), 2)}"
    return _Cell(name.removeprefix("metrics/"), text, mean, mean is not None and mean == best)


def _throughput(run: RecordedRun) -> float | None:
    samples, seconds = run.clock.samples, run.clock.seconds
    if len(samples) and len(seconds) and seconds.values[-1] > 0 and samples.values[-1] > 0:
        return samples.values[-1] / seconds.values[-1]
    return None


def _last(curve: Curve | None) -> float | None:
    return curve.values[-1] if curve is not None and len(curve) else None


_COLUMNS: Mapping[str, _Read] = {
    "batches": lambda run: run.num_batches,
    "training": lambda run: run.num_seconds,
    "samples/s": _throughput,
    "loss": lambda run: _last(run.curves.get("loss/train")),
}
_FORMATS: Mapping[str, Callable[[float | None], str]] = {
    "training": format_span,
    "samples/s": partial(format_number, digits=3),
}
