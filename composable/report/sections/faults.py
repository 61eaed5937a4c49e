"""Problems of the files, and warnings of the runs."""

from composable.report.chart_data import shown_metrics
from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, scrolling_table
from composable.report.lines import short_text
from composable.report.sections._common import format_number, labelled, list_or_empty, plan_of

__all__ = ["problems", "warnings"]


def problems(comparison: RunComparison) -> HTML | None:
    """List what could not be read, and metrics that are not finite."""
    items = []
    for index, run, label in labelled(comparison):
        found = list(run.problems)
        for name in shown_metrics([run]):
            if bad := run.curves[name].nonfinite():
                batches = "1 batch" if len(bad) == 1 else f"{format_number(len(bad))} batches"
                found.append(f"{name} is NaN or infinite at {batches}, first at {bad[0]}.")
        items += [element("li", label, ": ", text, data_run=index) for text in found]
    return element("ul", *items, class_="problems") if items else None


def warnings(comparison: RunComparison) -> HTML | None:
    """List the warnings of each run, and the caveats of its plan."""
    rows = []
    for index, run, label in labelled(comparison):
        shown = [
            (one.category, one.message, f"batch {one.batch}, {one.where}", one.count)
            for one in run.warnings
        ]
        for one in list_or_empty(plan_of(run).get("caveats")):
            shown.append(("caveat of the plan", short_text(one), "", 1))
        for category, message, where, count in shown:
            times = f" ({count} times)" if count > 1 else ""
            rows.append(
                element(
                    "tr",
                    element("td", label, class_="name"),
                    element("td", category),
                    element("td", message, element("div", f"{where}{times}", class_="note")),
                    data_run=index,
                )
            )
    return scrolling_table(["run", "category", "message"], rows) if rows else None
