"""What the folders of the runs have: checkpoints, images, warnings, and what is wrong with them."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from composable.report.chart_data import shown_metrics
from composable.report.comparison import RunComparison
from composable.report.images import Image
from composable.report.lines import EMPTY, as_batch, format_number, list_or_empty, short_text

__all__ = ["checkpoints", "images", "problems", "warnings"]

_MOST_CHECKPOINTS = 100
_MOST_IMAGES = 8  # of one name
_MOST_NAMES = 12
_MOST_BYTES = 1_000_000  # of all images


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
        for caveat in list_or_empty(run.plan.get("caveats")):
            rows.append((index, "caveat of the plan", short_text(caveat), ""))
    return rows


# --- checkpoints ---


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


# --- images ---


def images(comparison: RunComparison) -> list[tuple[int, list[Any], str]]:
    """List the images over the course of each run, as many as fit."""
    blocks, room = [], _MOST_BYTES // max(sum(bool(r.images) for r in comparison.runs), 1)
    for index, run in enumerate(comparison.runs):
        if not run.images:
            continue
        by_name: dict[str, list[Image]] = {}
        for image in run.images:
            by_name.setdefault(image.name, []).append(image)
        shown = list(by_name.items())[:_MOST_NAMES]
        strips = [_strip(name, found, room // len(shown)) for name, found in shown]
        count = sum(len(found) for _, found in shown)
        remark = f"{count} of {len(run.images)} images" if count < len(run.images) else ""
        blocks.append((index, strips, remark))
    return blocks


def _strip(name: str, found: Sequence[Image], room: int) -> tuple[str, list[Any], int]:
    """Return images of one name in a number of bytes, spread over the run, and how many remain."""
    pictures = []
    fitting = [one for one in found if one.bytes <= room // 2]
    count = min(len(fitting), _MOST_IMAGES)
    chosen = [fitting[i * (len(fitting) - 1) // max(count - 1, 1)] for i in range(count)]
    for image in reversed(chosen):  # the last ones first, if not all fit
        if image.bytes > room:
            continue
        room -= image.bytes
        try:
            url = image.as_url()
        except OSError:
            continue
        pictures.append((url, "" if image.batch is None else f"batch {image.batch}"))
    return name, pictures[::-1], len(found) - len(pictures)
