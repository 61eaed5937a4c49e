"""The curves, which a script draws."""

from collections.abc import Sequence
from typing import Any

from composable.report.chart_data import section_of, shown_metrics
from composable.report.comparison import RunComparison
from composable.report.sections._common import as_dicts, plan_of

__all__ = ["curves"]


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
        steps = [
            step for run in group for step in as_dicts(plan_of(comparison.runs[run]).get("steps"))
        ]
        changed = sorted({str(s.get("who")) for s in steps if s.get("stage") in _STAGES})
        if changed and set(group) & set(runs):
            names.append(f"{comparison.group_name(group)} ({', '.join(changed)})")
    if not names:
        return ""
    return f"Of mixed or smoothed targets: {'; '.join(names)}. Compare results of evaluations."


_STAGES = ("mix", "targets")
