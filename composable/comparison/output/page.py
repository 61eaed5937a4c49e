"""The page of a comparison, one HTML file without scripts, and its display in a notebook."""

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from composable._version import __version__
from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.plot import THEME, draw_plot, render_figure
from composable.comparison.output.tables import (
    arms_table,
    costs_table,
    failures_table,
    headline,
    notes,
    protocol_table,
    sentences,
    summary,
    tuning_table,
)
from composable.comparison.output.text import LEGEND
from composable.comparison.records import Study
from composable.core._printable import printable

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["render_notebook", "render_page"]

_MOST_ROWS = 2000


def render_page(study: Study, analysis: Analysis) -> str:
    """Return the page as text.

    Raises:
        ImportError: matplotlib, pandas or Jinja is not installed.
    """
    svg = render_figure(draw_plot(study, analysis, transparent=True), ".svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for color, variable in THEME.items():  # the plot follows the theme of the page
        svg = svg.replace(color, f"var(--{variable})")
    css = files("composable.report").joinpath("report.css").read_text(encoding="utf-8")
    tables = {
        "tuning": tuning_table(study),
        "failures": failures_table(study),
        "protocol": protocol_table(study),
    }
    return _render(study, analysis, tables, plot=svg, css=css)


def render_notebook(study: Study, analysis: Analysis) -> str:
    """Return the tables and verdicts as HTML; `Comparison.plot` shows the plot."""
    return _render(study, analysis, {}, inline=True)


def _render(study: Study, analysis: Analysis, tables: "dict[str, DataFrame]", **html: Any) -> str:
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError(
            "The page of a comparison needs Jinja: pip install composable[compare]. It is an "
            "extra, which the library does not install by default."
        ) from error
    tables = {"arms": arms_table(analysis), "costs": costs_table(study, analysis), **tables}
    source = files("composable.comparison.output").joinpath("page.html")
    template = Environment(autoescape=True).from_string(source.read_text(encoding="utf-8"))
    page: str = template.render(
        title=printable(headline(study, analysis)),
        summary=printable(summary(study)),
        sentences=[printable(f"{line}.") for line in sentences(analysis)],
        notes=[printable(f"{line}.") for line in notes(analysis)],
        legend=LEGEND,
        version=__version__,
        tables={name: Markup(_html(frame)) for name, frame in tables.items()},
        **{name: Markup(text) if isinstance(text, str) else text for name, text in html.items()},
    )
    return page


def _html(frame: "DataFrame") -> str:
    """Return a table as HTML, escaped; empty without rows."""
    import pandas

    if frame.empty:
        return ""
    with pandas.option_context("display.max_colwidth", None):
        table: str = frame.head(_MOST_ROWS).to_html(index=False, border=0)
    more = len(frame) - _MOST_ROWS
    return table + (f"<p>{more} more rows are in study.json.</p>" if more > 0 else "")
