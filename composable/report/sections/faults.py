"""Problems of the files, and warnings of the runs."""

from composable.report.chart_data import shown_metrics
from composable.report.comparison import RunComparison
from composable.report.lines import short_text
from composable.report.sections._common import format_number, list_or_empty, plan_of

__all__ = ["problems", "warnings"]


def problems(comparison: RunComparison) -> list[tuple[int, str]]:
    """List what could not be read, and metrics that are not finite."""
    items = []
    for index, run in enumerate(comparison.runs):
        items += [(index, text) for text in run.problems]
        for name in shown_metrics([run]):
            if bad := run.curves[name].nonfinite():
                batches = "1 batch" if len(bad) == 1 else f"{format_number(len(bad))} batches"
                text = f"{name} is NaN or infinite at {batches}, first at {bad[0]}."
                items.append((index, text))
    return items


def warnings(comparison: RunComparison) -> list[tuple[int, str, str, str]]:
    """List the run, the category, the text and the place of warnings and caveats of plans."""
    rows = []
    for index, run in enumerate(comparison.runs):
        for one in run.warnings:
            times = f" ({one.count} times)" if one.count > 1 else ""
            where = f"batch {one.batch}, {one.where}{times}"
            rows.append((index, one.category, one.message, where))
        for caveat in list_or_empty(plan_of(run).get("caveats")):
            rows.append((index, "caveat of the plan", short_text(caveat), ""))
    return rows
