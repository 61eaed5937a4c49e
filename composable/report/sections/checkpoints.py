"""The checkpoints of the runs."""

from datetime import datetime, timezone
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join, scrolling_table
from composable.report.lines import as_batch, short_text
from composable.report.sections._common import EMPTY, format_number, labelled, note_of

__all__ = ["checkpoints"]

_MOST_CHECKPOINTS = 100


def checkpoints(comparison: RunComparison) -> HTML | None:
    """List the checkpoints of each run."""
    rows, left_out = [], 0
    for index, run, label in labelled(comparison):
        left_out += max(len(run.checkpoints) - _MOST_CHECKPOINTS, 0)
        for one in run.checkpoints[-_MOST_CHECKPOINTS:]:
            best, size = one["best"], one["bytes"]
            shown = f"best {best['metric']}: {short_text(best['value'])}" if best else ""
            rows.append(
                element(
                    "tr",
                    element("td", label, class_="name"),
                    element("td", one["name"]),
                    element("td", format_number(as_batch(one["batch"])), class_="number"),
                    element("td", f"{size / 1e6:.3g} MB", class_="number"),
                    element("td", _date(one["created"]), class_="number"),
                    element("td", shown or ("" if one["complete"] else "weights only")),
                    data_run=index,
                )
            )
    if not rows:
        return None
    body = scrolling_table(["run", "checkpoint", "batch", "size", "written (UTC)", ""], rows)
    return join(body, note_of(f"… and {left_out} more")) if left_out else body


def _date(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError, TypeError):
        return EMPTY
