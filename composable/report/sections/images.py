"""The images of the runs."""

from collections.abc import Sequence
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.images import Image

__all__ = ["images"]

_MOST_IMAGES = 8  # of one name
_MOST_NAMES = 12
_MOST_BYTES = 1_000_000  # of all images


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
    chosen = _spread([one for one in found if one.bytes <= room // 2], _MOST_IMAGES)
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


def _spread(values: list[Image], most: int) -> list[Image]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]
