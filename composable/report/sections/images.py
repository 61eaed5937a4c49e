"""The images of the runs."""

from collections.abc import Sequence

from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join
from composable.report.images import Image
from composable.report.sections._common import labelled, note_of

__all__ = ["images"]

_MOST_IMAGES = 8  # of one name
_MOST_NAMES = 12
_MOST_BYTES = 1_000_000  # of all images


def images(comparison: RunComparison) -> HTML | None:
    """Show images over the course of each run, as many as fit."""
    blocks, room = [], _MOST_BYTES // max(sum(bool(r.images) for r in comparison.runs), 1)
    for index, run, label in labelled(comparison):
        if not run.images:
            continue
        by_name: dict[str, list[Image]] = {}
        for image in run.images:
            by_name.setdefault(image.name, []).append(image)
        names = list(by_name)[:_MOST_NAMES]
        each = room // len(names)
        strips = [_strip(name, by_name[name], each) for name in names]
        heading = element("h3", element("span", label))
        count = sum(len(by_name[name]) for name in names)
        note = f"{count} of {len(run.images)} images" if count < len(run.images) else ""
        blocks.append(element("div", heading, *strips, note_of(note), data_run=index))
    return join(*blocks) if blocks else None


def _strip(name: str, found: Sequence[Image], room: int) -> HTML:
    """Show images of one name, spread over the run, in a number of bytes."""
    pictures = []
    chosen = _spread([one for one in found if one.bytes <= room // 2], _MOST_IMAGES)
    for image in reversed(chosen):  # the last ones first, if not all fit
        if image.bytes > room:
            continue
        room -= image.bytes
        caption = "" if image.batch is None else f"batch {image.batch}"
        try:
            picture = element("img", src=image.as_url(), alt=f"{name} {caption}".strip())
        except OSError:
            continue
        pictures.append(element("figure", picture, element("figcaption", caption)))
    left_out = len(found) - len(pictures)
    more = f" ({left_out} more in the run folder)" if left_out else ""
    strip = element("div", *reversed(pictures), class_="strip")
    return join(element("p", name, element("span", more, class_="note")), strip)


def _spread(values: list[Image], most: int) -> list[Image]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]
