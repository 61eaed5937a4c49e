"""The result of a comparison in a notebook."""

from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.table import (
    COST_HEADER,
    HEADER,
    arm_row,
    cost_row,
    explain_columns,
)
from composable.comparison.output.wording import headline, noise_floor, notes, verdict_sentences
from composable.comparison.records import Study
from composable.core._html import details, escape, panel, table

__all__ = ["render_notebook"]


def render_notebook(study: Study, analysis: Analysis) -> str:
    """Return the table and the verdicts as HTML; `Comparison.plot` shows the plot.

    Args:
        study: The study.
        analysis: Its analysis.
    """
    sentences = [
        *verdict_sentences(analysis),
        noise_floor(analysis),
        *notes(analysis),
    ]
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    costs = table([cost_row(study, arm) for arm in analysis.arms], COST_HEADER)
    return panel(
        headline(study, analysis),
        table([arm_row(arm) for arm in analysis.arms], HEADER),
        f"<ul>{listed}</ul>",
        details("columns", f"<p>{escape(explain_columns(study, analysis))}</p>"),
        details("costs", costs),
    )
