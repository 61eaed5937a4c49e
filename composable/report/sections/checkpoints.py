"""The checkpoints of the runs."""

from datetime import datetime, timezone
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.lines import as_batch, short_text
from composable.report.sections._common import EMPTY, format_number

__all__ = ["checkpoints"]

_MOST_CHECKPOINTS = 100


def checkpoints(comparison: RunComparison) -> dict[str, Any]:
    """List the checkpoints of each run."""
    left_out = sum(max(len(run.checkpoints) - _MOST_CHECKPOINTS, 0) for run in comparison.runs)
    rows = [
        (index, _describe(one))
        for index, run in enumerate(comparison.runs)
        for one in run.checkpoints[-_MOST_CHECKPOINTS:]
    ]
    return {"rows": rows, "left_out": left_out} if rows else {}


def _describe(one: dict[str, Any]) -> dict[str, str]:
    best = one["best"]
    shown = f"best {best['metric']}: {short_text(best['value'])}" if best else ""
    return {
        "name": one["name"],
        "batch": format_number(as_batch(one["batch"])),
        "size": f"{one['bytes'] / 1e6:.3g} MB",
        "written": _date(one["created"]),
        "remark": shown or ("" if one["complete"] else "weights only"),
    }


def _date(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError, TypeError):
        return EMPTY
