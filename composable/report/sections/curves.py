"""The curves, which a script draws."""

from collections.abc import Sequence

from composable.report.chart_data import section_of, shown_metrics
from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join
from composable.report.sections._common import as_dicts, note_of, plan_of, run_numbers

__all__ = ["curves"]


def curves(comparison: RunComparison) -> HTML | None:
    """Make a place for the chart of each metric."""
    by_section: dict[str, list[HTML]] = {}
    for index, name in enumerate(shown_metrics(comparison.runs)):
        having = [i for i, run in enumerate(comparison.runs) if len(run.curves.get(name, ()))]
        chart = element(
            "figure",
            element("figcaption", name, title=name),
            element("div", class_="plot"),
            note_of(_mixed(comparison, having) if name == "loss/train" else ""),
            class_="chart",
            data_chart=index,
            data_runs=run_numbers(having),
        )
        by_section.setdefault(section_of(name), []).append(chart)
    grids = []
    for heading, charts in by_section.items():
        title = element("h3", heading) if heading else ""
        grids.append(join(title, element("div", *charts, class_="charts")))
    return join(*grids) if grids else None


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
