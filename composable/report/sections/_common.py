"""What several sections of the page use."""

import math
from collections.abc import Sequence
from typing import Any

from composable._support import printable
from composable.report.chart_data import color_of, run_color
from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join
from composable.report.recorded_run import RecordedRun

__all__ = [
    "EMPTY",
    "as_dicts",
    "fold",
    "format_number",
    "format_span",
    "group_label",
    "label_of",
    "labelled",
    "list_or_empty",
    "note_of",
    "plan_of",
    "run_numbers",
]

EMPTY = "—"


def label_of(comparison: RunComparison, run: int) -> HTML:
    """Return the name of a run, with a dot of its color."""
    return join(_dot(run_color(comparison, run)), comparison.names[run])


def group_label(comparison: RunComparison, group: int) -> HTML:
    """Return the name of a group of runs, with a dot of its color."""
    return join(_dot(color_of(group)), comparison.group_name(comparison.groups[group]))


def _dot(color: str) -> HTML:
    return element("i", class_="dot", style=f"background:{color}")


def labelled(comparison: RunComparison) -> list[tuple[int, RecordedRun, HTML]]:
    """Return the index, the run and the label of each run."""
    return [(i, run, label_of(comparison, i)) for i, run in enumerate(comparison.runs)]


def note_of(text: str) -> HTML:
    """Return a remark in small print; nothing if it is empty."""
    return element("p", text, class_="note") if text else HTML("")


def fold(summary: str, body: HTML) -> HTML:
    """Fold a part of the page under its summary."""
    return element("details", element("summary", summary), body)


def run_numbers(runs: Sequence[int]) -> str:
    """List the runs to which an element belongs."""
    return " ".join(map(str, runs))


def format_number(value: float | None, digits: int = 4) -> str:
    """Format a number for a table.

    Example:
        >>> from composable.report.sections._common import format_number
        >>> [format_number(value) for value in (0.123456, 3.0, 12345.6, float("nan"), None)]
        ['0.1235', '3', '12,346', 'nan', '—']
    """
    if value is None:
        return EMPTY
    if math.isfinite(value) and abs(value) < 1e15 and (value == int(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_span(seconds: float | None) -> str:
    """Format seconds for a table, of which a file may have any value."""
    unknown = seconds is None or not math.isfinite(seconds)
    return EMPTY if unknown else printable.format_duration(seconds)  # type: ignore[arg-type]


# --- values from files, which may be anything ---


def plan_of(run: RecordedRun) -> dict[str, Any]:
    """Return the recorded plan of a run; empty if there is none."""
    plan = run.configuration.get("plan")
    return plan if isinstance(plan, dict) else {}


def list_or_empty(values: Any) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return values if isinstance(values, list) else []


def as_dicts(values: Any) -> list[dict[str, Any]]:
    """Return the dictionaries in a list; an empty one for anything else."""
    return [one for one in list_or_empty(values) if isinstance(one, dict)]
