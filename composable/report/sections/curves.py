"""The curves, which a script draws."""

from composable.report.chart_data import section_of, shown_metrics
from composable.report.comparison import Comparison
from composable.report.html import HTML, element, join
from composable.report.sections._common import numbers

__all__ = ["curves"]


def curves(comparison: Comparison) -> HTML | None:
    """Make a place for the chart of each metric."""
    by_section: dict[str, list[HTML]] = {}
    for index, name in enumerate(shown_metrics(comparison.runs)):
        having = [i for i, run in enumerate(comparison.runs) if len(run.curves.get(name, ()))]
        chart = element(
            "figure",
            element("figcaption", name, title=name),
            element("div", class_="plot"),
            class_="chart",
            data_chart=index,
            data_runs=numbers(having),
        )
        by_section.setdefault(section_of(name), []).append(chart)
    grids = []
    for heading, charts in by_section.items():
        title = element("h3", heading) if heading else ""
        grids.append(join(title, element("div", *charts, class_="charts")))
    return join(*grids) if grids else None
