"""What the sections of the page show, as data: `page.html` has their structure."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import attrs

from composable.core.result_names import known_mode
from composable.report.comparison import RunComparison
from composable.report.curves import Curve
from composable.report.lines import (
    EMPTY,
    as_batch,
    as_dicts,
    format_number,
    format_span,
    list_or_empty,
    short_text,
)
from composable.report.metrics import section_of, shown_metrics
from composable.report.recorded_run import RecordedRun

_MOST_RESULTS = 5
_Read: TypeAlias = Callable[[RecordedRun], float | None]
_Show: TypeAlias = Callable[[float | None], str]
_WITHOUT_EFFECT = ("arguments",)  # folders, as a rule
PART_COLORS = {  # the parts of TimeSplit, with their colors
    "data": "#b4690e",
    "forward": "#3a62c8",
    "backward": "#7d55c7",
    "optimizer": "#17805f",
    "evaluation": "#0b7f8b",
    "saving": "#c23860",
    "other": "#6b7683",
}
_MOST_CHECKPOINTS = 100


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
    grouped = [[comparison.runs[run] for run in group] for group in comparison.groups]
    metrics = shown_metrics(run.curves for run in comparison.runs)
    results = [name for name in metrics if name.startswith("metrics/")][:_MOST_RESULTS]
    columns = [_column(grouped, name, *how) for name, how in _COLUMNS.items()]
    columns += [_results(grouped, name) for name in results]
    return [
        {
            "members": group,
            "statuses": Counter(run.status for run in runs),
            "rest": _rest(runs[0]),
            "error": runs[0].error,
            "cells": cells,
        }
        for group, runs, *cells in zip(comparison.groups, grouped, *columns, strict=True)
    ]


def _column(
    groups: Sequence[Sequence[RecordedRun]], name: str, read: _Read, show: _Show
) -> list[_Cell]:
    return [_Cell(name, show(mean), mean) for mean in map(_mean, _values(groups, read))]


def _results(groups: Sequence[Sequence[RecordedRun]], name: str) -> list[_Cell]:
    """Return the cells of a result, of which the best one is marked if the name tells."""
    title = name.removeprefix("metrics/")
    mode = known_mode(title, None)
    values = _values(groups, lambda run: _best_of(run.curves.get(name), mode))
    means = [_mean(value) for value in values]
    known = [mean for mean in means if mean is not None]
    best = (min if mode == "min" else max)(known) if mode and len(known) > 1 else None
    return [
        _Cell(title, format_number(mean) + _spread(value), mean, mean is not None and mean == best)
        for mean, value in zip(means, values, strict=True)
    ]


def _values(groups: Sequence[Sequence[RecordedRun]], read: _Read) -> list[list[float]]:
    return [[value for value in map(read, runs) if value is not None] for runs in groups]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _spread(values: Sequence[float]) -> str:
    """Describe the standard deviation over several runs."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return ""
    return f" ± {format_number(statistics.stdev(values), 2)}"


def _best_of(curve: Curve | None, mode: str | None) -> float | None:
    """Return the lowest or highest value, or the last one if it is not known which is better."""
    if mode is None or curve is None:
        return _last(curve)
    return (min if mode == "min" else max)((v for _, v in curve.finite()), default=None)


def _last(curve: Curve | None) -> float | None:
    return curve.values[-1] if curve is not None and len(curve) else None


def _rest(run: RecordedRun) -> str:
    """Continue the number of batches of a run by what was skipped, and the whole duration."""
    whole = run.configuration.get("max_duration")
    skipped = f", {run.num_skipped} skipped" if run.num_skipped else ""
    return skipped + (f" of {whole}" if isinstance(whole, str) else "")


def _throughput(run: RecordedRun) -> float | None:
    samples, seconds = _last(run.clock.samples), _last(run.clock.seconds)
    return samples / seconds if samples and seconds else None


_COLUMNS: Mapping[str, tuple[_Read, _Show]] = {
    "batches": (lambda run: run.num_batches, format_number),
    "training": (lambda run: run.num_seconds, format_span),
    "samples/s": (_throughput, partial(format_number, digits=3)),
    "loss": (lambda run: _last(run.curves.get("loss/train")), format_number),
}


# --- how the runs are configured ---


def differences(comparison: RunComparison) -> dict[str, Any]:
    """List the settings and facts that differ."""
    if len(comparison.runs) == 1:
        return {}
    found = {**comparison.differing(comparison.settings), **comparison.differing(comparison.system)}
    shown = {name: row for name, row in found.items() if not name.startswith(_WITHOUT_EFFECT)}
    by_group = {  # runs of a group differ in the seed alone
        name: [", ".join(dict.fromkeys(row[run] for run in group)) for group in comparison.groups]
        for name, row in shown.items()
    }
    rows = list(by_group.items())
    if len(comparison.groups) > 1:
        rows = [(name, texts) for name, texts in rows if len(set(texts)) > 1]  # not the seeds
    return {
        "equal": not shown,
        "rows": [(name, [*map(short_call, texts)]) for name, texts in rows],
    }


def all_settings(comparison: RunComparison) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return the tables of all hyperparameters and of facts about the system."""
    modules = {n: v for n, v in comparison.settings.items() if n.split("/")[0] == "modules"}
    settings = {n: v for n, v in comparison.settings.items() if n not in modules}
    tables = {
        "Hyperparameters and data": settings,
        "Layers of the model": modules,
        "System": comparison.system,
    }
    return {summary: values for summary, values in tables.items() if values}


def plan(comparison: RunComparison) -> list[dict[str, Any]]:
    """List the different plans: their runs, when each algorithm is active, and their steps."""
    alike: dict[str, list[int]] = {}
    for index, run in enumerate(comparison.runs):
        key = repr([run.plan.get("steps"), run.configuration.get("algorithms")])
        if run.plan:
            alike.setdefault(key, []).append(index)
    return [{"runs": runs, **_describe_plan(comparison.runs[runs[0]])} for runs in alike.values()]


def _describe_plan(run: RecordedRun) -> dict[str, Any]:
    calls = run.configuration.get("algorithms")
    steps = [
        [short_text(step.get(name, "")) for name in ("event", "who", "stage", "why")]
        for step in as_dicts(run.plan.get("steps"))
    ]
    return {
        "calls": [short_text(call) for call in calls.values()] if isinstance(calls, dict) else [],
        "steps": steps,
    }


def short_call(text: str) -> str:
    """Shorten a call: without the arguments that are None or False, and with times as strings.

    Example:
        >>> from composable.report.sections import short_call
        >>> short_call("EMA(half_life=Time('20ba'), smoothing=None, ema_start=Time('0dur'))")
        "EMA(half_life='20ba', ema_start='0dur')"
    """
    text = re.sub(r"\bTime\(('[^']*')\)", r"\1", text)
    text = re.sub(r"\((?:\w+=(?:None|False)(?:, |(?=\))))+", "(", text)
    return re.sub(r", \w+=(?:None|False)(?=[,)])", "", text)


# --- curves, and the time of training ---


def curves(comparison: RunComparison) -> dict[str, list[Any]]:
    """List the charts by heading: the number, the name, the runs and a remark of each."""
    charts: dict[str, list[Any]] = {}
    for index, name in enumerate(shown_metrics(run.curves for run in comparison.runs)):
        having = [i for i, run in enumerate(comparison.runs) if len(run.curves.get(name, ()))]
        charts.setdefault(section_of(name), []).append((index, name, having))
    return charts


def time_split(comparison: RunComparison) -> list[tuple[int, str, list[Any]]]:
    """List the bars of each run: the share of each part of training, a text and a color."""
    rows = []
    for index, run in enumerate(comparison.runs):
        split = {n: s for n, s in run.time_split.items() if math.isfinite(s) and s > 0}
        if whole := sum(split.values()):
            names = [n for n in (*PART_COLORS, *split.keys() - PART_COLORS.keys()) if n in split]
            bars = [_bar(name, split[name], whole) for name in names]
            rows.append((index, format_span(whole), bars))
    return rows


def _bar(name: str, seconds: float, whole: float) -> tuple[float, str, str]:
    share = 100 * seconds / whole
    text = f"{name}: {format_span(seconds)}, {share:.3g} %"
    return share, text, PART_COLORS.get(name, PART_COLORS["other"])


# --- what the folders of the runs have ---


def problems(comparison: RunComparison) -> list[tuple[int, str]]:
    """List what could not be read, and metrics that are not finite."""
    items = []
    for index, run in enumerate(comparison.runs):
        items += [(index, text) for text in run.problems]
        for name in shown_metrics([run.curves]):
            if bad := run.curves[name].nonfinite():
                batches = "1 batch" if len(bad) == 1 else f"{format_number(len(bad))} batches"
                text = f"{name} is NaN or infinite at {batches}, first at {bad[0]}."
                items.append((index, text))
    return items


def warnings(comparison: RunComparison) -> list[tuple[int, str, str, str]]:
    """List the run, the category, the text and the place of warnings and caveats of plans."""
    rows = []
    for index, run in enumerate(comparison.runs):
        for warning in run.warnings:
            times = f" ({warning.count} times)" if warning.count > 1 else ""
            where = f"batch {warning.batch}, {warning.where}{times}"
            rows.append((index, warning.category, warning.message, where))
        for caveat in list_or_empty(run.plan.get("caveats")):
            rows.append((index, "caveat of the plan", short_text(caveat), ""))
    return rows


def checkpoints(comparison: RunComparison) -> dict[str, Any]:
    """List the checkpoints of each run."""
    left_out = sum(max(len(run.checkpoints) - _MOST_CHECKPOINTS, 0) for run in comparison.runs)
    rows = [
        (index, _describe_checkpoint(checkpoint))
        for index, run in enumerate(comparison.runs)
        for checkpoint in run.checkpoints[-_MOST_CHECKPOINTS:]
    ]
    return {"rows": rows, "left_out": left_out} if rows else {}


def _describe_checkpoint(one: dict[str, Any]) -> dict[str, str]:
    best = one["best"]
    shown = f"best {best['metric']}: {short_text(best['value'])}" if best else ""
    return {
        "name": one["name"],
        "batch": format_number(as_batch(one["batch"])),
        "size": f"{one['bytes'] / 1e6:.3g} MB",
        "written": _date(one["created"]),
        "remark": shown or ("" if one["complete"] else "weights only"),
    }


def _date(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError, TypeError):
        return EMPTY
