"""What several sections of the page use."""

import math
from typing import Any

from composable._support.printable import format_duration
from composable.report.recorded_run import RecordedRun

__all__ = [
    "EMPTY",
    "as_dicts",
    "format_number",
    "format_span",
    "list_or_empty",
    "plan_of",
]

EMPTY = "—"


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
    return EMPTY if seconds is None or not math.isfinite(seconds) else format_duration(seconds)


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
