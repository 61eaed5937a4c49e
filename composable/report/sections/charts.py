"""The curves, which a script draws, and how the time of training is split."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from composable.report.chart_data import section_of, shown_metrics
from composable.report.comparison import RunComparison
from composable.report.lines import as_dicts, format_span

__all__ = ["PART_COLORS", "curves", "time_split"]

_STAGES = ("mix", "targets")
PART_COLORS = {  # the parts of TimeSplit, with their colors
    "data": "#b4690e",
    "forward": "#3a62c8",
    "backward": "#7d55c7",
    "optimizer": "#17805f",
    "evaluation": "#0b7f8b",
    "saving": "#c23860",
    "other": "#6b7683",
}


def curves(comparison: RunComparison) -> dict[str, list[Any]]:
    """List the charts by heading: the number, the name, the runs and a remark of each."""
    charts: dict[str, list[Any]] = {}
    for index, name in enumerate(shown_metrics(comparison.runs)):
        having = [i for i, run in enumerate(comparison.runs) if len(run.curves.get(name, ()))]
        remark = _mixed(comparison, having) if name == "loss/train" else ""
        charts.setdefault(section_of(name), []).append((index, name, having, remark))
    return charts


def _mixed(comparison: RunComparison, runs: Sequence[int]) -> str:
    """Name the groups whose training loss is not that of the targets of the data."""
    names = []
    for group in comparison.groups:
        steps = [step for run in group for step in as_dicts(comparison.runs[run].plan.get("steps"))]
        changed = sorted({str(s.get("who")) for s in steps if s.get("stage") in _STAGES})
        if changed and set(group) & set(runs):
            names.append(f"{comparison.group_name(group)} ({', '.join(changed)})")
    if not names:
        return ""
    return f"Of mixed or smoothed targets: {'; '.join(names)}. Compare results of evaluations."


def time_split(comparison: RunComparison) -> list[tuple[int, str, list[Any]]]:
    """List the bars of each run: the share of each part of training, a text and a color."""
    rows = []
    for index, run in enumerate(comparison.runs):
        split = {n: s for n, s in run.time_split.items() if math.isfinite(s) and s > 0}
        if whole := sum(split.values()):
            names = [n for n in (*PART_COLORS, *split.keys() - PART_COLORS.keys()) if n in split]
            bars = [_bar(name, split[name], whole) for name in names]
            rows.append((index, _sum(split, whole, run.num_seconds), bars))
    return rows


def _sum(split: Mapping[str, float], whole: float, training: float | None) -> str:
    """Write the time as a sum that begins with the training time of the overview."""
    parts = {name: split[name] for name in ("evaluation", "saving") if name in split}
    rest = whole - (training or 0) - sum(parts.values())
    if training is None or rest < 0:
        return format_span(whole)
    summed = {"training": training, **parts, "other": rest}
    shown = " + ".join(f"{name} {format_span(seconds)}" for name, seconds in summed.items())
    return f"{format_span(whole)} = {shown}"


def _bar(name: str, seconds: float, whole: float) -> tuple[float, str, str]:
    share = 100 * seconds / whole
    text = f"{name}: {format_span(seconds)}, {share:.3g} %"
    return share, text, PART_COLORS.get(name, PART_COLORS["other"])
