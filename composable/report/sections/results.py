"""Which runs are best: the answer in sentences, and the overview as a table."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import attrs

from composable.core.result_names import known_mode
from composable.report.chart_data import shown_metrics
from composable.report.comparison import RunComparison
from composable.report.curves import Curve
from composable.report.lines import format_number, format_span
from composable.report.recorded_run import RecordedRun
from composable.report.sections.files import problems

__all__ = ["answer", "overview"]

_LATE = 0.75  # of the evaluations
_GAIN = 0.05  # of all that was gained, from which on a run is not converged
_FEWEST = 4  # evaluations
_WAITING = 0.3  # of the time
_MOST_RESULTS = 5
_UNKNOWN = "No result of an evaluation tells which run is best: pass an eval_dataloader."
_Read: TypeAlias = Callable[[RecordedRun], float | None]


# --- the values of a group of runs ---


@attrs.frozen
class _Values:
    """What the runs of a group have of a result, or of another number."""

    group: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the runs; None for a single one."""
        finite = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if finite else None


def _values(comparison: RunComparison, read: _Read) -> list[_Values]:
    """Return the values of each group; none for runs without one."""
    read_all = ([read(comparison.runs[run]) for run in group] for group in comparison.groups)
    return [
        _Values(index, tuple(value for value in values if value is not None))
        for index, values in enumerate(read_all)
    ]


def _result_names(comparison: RunComparison) -> list[str]:
    return [name for name in shown_metrics(comparison.runs) if name.startswith("metrics/")]


def _mode_of(name: str) -> str | None:
    """Return whether a lower ("min") or a higher ("max") value is better, if the name tells."""
    return known_mode(name.removeprefix("metrics/"), None)


def _best_value(run: RecordedRun, name: str) -> float | None:
    """Return the best value of a result, or the last one if its name does not tell."""
    curve, mode = run.curves.get(name), _mode_of(name)
    if mode is None or curve is None:
        return _last(curve)
    return (min if mode == "min" else max)((v for _, v in curve.finite()), default=None)


def _last(curve: Curve | None) -> float | None:
    return curve.values[-1] if curve is not None and len(curve) else None


def _ranked(comparison: RunComparison, name: str) -> list[_Values]:
    """Return the values of the groups that have a result, the best one first if the name tells."""
    found = [one for one in _values(comparison, partial(_best_value, name=name)) if one.values]
    mode = _mode_of(name)
    return sorted(found, key=lambda one: one.mean, reverse=mode == "max") if mode else found


# --- the answer ---


def answer(comparison: RunComparison) -> str:
    """Answer in a few sentences: the best group, its lead, and whether it converged."""
    named = {name: _ranked(comparison, name) for name in _result_names(comparison)}
    ranked = {name: found for name, found in named.items() if found and _mode_of(name)}
    sentences = _answer(comparison, ranked) if ranked else [_UNKNOWN]
    return " ".join([*sentences, *_look_at(comparison)])


def _answer(comparison: RunComparison, ranked: Mapping[str, Sequence[_Values]]) -> Iterator[str]:
    (name, results), *others = ranked.items()
    best = results[0]
    title, shown = _title(comparison, best), name.removeprefix("metrics/")
    if len(results) == 1:
        yield f"{title}: {shown} {_value(best)} at its best."
    else:
        yield f"{title} is best in {shown}: {_value(best)}, {_lead(comparison, best, results[1])}."
    for other, (first, *_) in others[: _MOST_RESULTS - 1]:
        if first.group != best.group:
            yield f"In {other.removeprefix('metrics/')}, {_title(comparison, first)} is best."
    if len({run.num_batches for run in comparison.runs}) > 1:
        yield "The runs have different numbers of batches."
    gained = late_gain([comparison.runs[run] for run in comparison.groups[best.group]], name)
    if gained is not None and gained > _GAIN:
        yield f"It was still improving: {gained:.0%} of its gain came in the last quarter."
    elif gained is not None:
        yield "It had converged: little changed in the last quarter."


def _title(comparison: RunComparison, result: _Values) -> str:
    return comparison.group_name(comparison.groups[result.group])


def _value(result: _Values) -> str:
    mean = format_number(result.mean)
    if result.spread is None:
        return f"{mean} (one run)"
    return f"{mean} ± {format_number(result.spread, 2)} ({len(result.values)} runs)"


def _lead(comparison: RunComparison, best: _Values, second: _Values) -> str:
    """Describe the distance to the second group, and whether seeds may explain it."""
    name = _title(comparison, second)
    distance = f"{format_number(abs(best.mean - second.mean), 2)} ahead of {name}"
    if min(len(best.values), len(second.values)) < 2:
        return f"{distance}, which the seed may explain: repeat both with other seeds"
    low, high = sorted([best, second], key=lambda one: one.mean)
    if max(low.values) < min(high.values):
        return f"{distance}; each of its runs is better than each of {name}"
    return f"{distance}, which seeds may explain: their runs overlap"


def late_gain(runs: Sequence[RecordedRun], name: str) -> float | None:
    """Return the share of the gain in a result that came in the last quarter of some runs.

    None if a run has fewer than four evaluations, or nothing was gained.
    """
    sign = 1 if _mode_of(name) == "max" else -1
    curves = [
        [sign * v for _, v in run.curves[name].finite()] for run in runs if name in run.curves
    ]
    if not curves or min(map(len, curves)) < _FEWEST:
        return None
    late = statistics.mean(max(one) - max(one[: round(_LATE * len(one))]) for one in curves)
    gained = statistics.mean(max(one) - one[0] for one in curves)
    return late / gained if gained > 0 else None


def _look_at(comparison: RunComparison) -> Iterator[str]:
    failed = [run for run in comparison.runs if run.status in ("failed", "not ended")]
    if failed:
        yield f"{len(failed)} of {len(comparison.runs)} runs did not end: see Problems."
    elif problems(comparison):
        yield "See Problems."
    splits = [run.time_split for run in comparison.runs]
    waiting = [one["data"] / sum(one.values()) for one in splits if one.get("data", 0) > 0]
    if waiting and statistics.mean(waiting) > _WAITING:
        yield f"Waiting for data took {statistics.mean(waiting):.0%} of the time: see Time."


# --- the overview ---


class _Cell(NamedTuple):
    column: str
    text: str
    value: float | None
    best: bool = False


def overview(comparison: RunComparison) -> dict[str, list[Any]]:
    """List the groups and the runs: status, duration, throughput, the last loss, the results."""
    each = attrs.evolve(comparison, groups=tuple((run,) for run in range(len(comparison.runs))))
    grouped = len(comparison.groups) < len(comparison.runs)
    return {"groups": _rows(comparison) if grouped else [], "runs": _rows(each)}


def _rows(comparison: RunComparison) -> list[dict[str, Any]]:
    """Describe groups of runs by the mean in each column, and the spread of the results."""
    columns = [
        [_cell(name, one) for one in _values(comparison, read)] for name, read in _COLUMNS.items()
    ]
    columns += [_results(comparison, n) for n in _result_names(comparison)[:_MOST_RESULTS]]
    grouped = [[comparison.runs[run] for run in group] for group in comparison.groups]
    return [
        {
            "members": group,
            "statuses": Counter(run.status for run in runs),
            "rest": _rest(runs[0]),
            "error": runs[0].error,
            "cells": cells,
        }
        for group, runs, cells in zip(
            comparison.groups, grouped, zip(*columns, strict=True), strict=True
        )
    ]


def _cell(name: str, values: _Values) -> _Cell:
    mean = values.mean if values.values else None
    return _Cell(name, _FORMATS.get(name, format_number)(mean), mean)


def _results(comparison: RunComparison, name: str) -> list[_Cell]:
    """Return the cells of a result, of which the best one is marked if the name tells."""
    every, mode = _values(comparison, partial(_best_value, name=name)), _mode_of(name)
    means = [one.mean for one in every if one.values]
    best = (min if mode == "min" else max)(means) if mode and len(means) > 1 else None
    cells = []
    for one in every:
        _, text, mean, _ = _cell("", one)
        text += "" if one.spread is None else f" ± {format_number(one.spread, 2)}"
        is_best = mean is not None and mean == best
        cells.append(_Cell(name.removeprefix("metrics/"), text, mean, is_best))
    return cells


def _rest(run: RecordedRun) -> str:
    """Continue the number of batches of a run by what was skipped, and the whole duration."""
    whole = run.configuration.get("max_duration")
    skipped = f", {run.num_skipped} skipped" if run.num_skipped else ""
    return skipped + (f" of {whole}" if isinstance(whole, str) else "")


def _throughput(run: RecordedRun) -> float | None:
    samples, seconds = _last(run.clock.samples), _last(run.clock.seconds)
    return samples / seconds if samples and seconds else None


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
