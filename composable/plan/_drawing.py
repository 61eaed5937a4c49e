"""The picture of a timeline, as an SVG: a row for each algorithm, time from left to right."""

from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING

from composable.core.algorithm import Stage
from composable.core.time import Time, TimeUnit

if TYPE_CHECKING:
    from composable.plan.timeline import Row, Span, Timeline

__all__ = ["draw"]

_WIDTH, _LEFT, _RIGHT = 900, 210, 24
_TOP, _ROW, _BAR = 62, 40, 22
_LETTER = 6.5  # the width of a letter of 11 pixels, on the safe side
_INK, _FAINT, _GRID = "#1f2933", "#5f6b7a", "#e3e7ec"

# Dark enough for white letters on them.
_COLOURS = {
    Stage.SELECT: "#1b6ca8",
    Stage.RESIZE: "#0b7285",
    Stage.AUGMENT: "#2b7a3d",
    Stage.MIX: "#8a5a00",
    Stage.TARGETS: "#b3421b",
    Stage.SURGERY: "#5d4a8c",
    Stage.LAYOUT: "#7a4595",
    Stage.PRECISION: "#a03070",
    Stage.GRADIENTS: "#a31f34",
    Stage.AVERAGE: "#34568b",
    Stage.OTHER: "#555f6b",
}


def draw(timeline: "Timeline") -> str:
    """The picture, as the text of an SVG file."""
    rows = timeline.rows
    bottom = _TOP + _ROW * max(len(rows), 1)
    height = bottom + 62
    said = f"{len(rows)} algorithms over {_length(timeline)}" if rows else str(timeline)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">',
        f"<title>When each algorithm is active: {escape(said)}</title>",
        f"<desc>{escape(str(timeline))}</desc>",
        _hatchings({row.stage for row in rows}),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_RIGHT, 26, "When each algorithm is active", size=15, weight=600),
        _text(_RIGHT, 44, _length(timeline), colour=_FAINT),
        *_axis(timeline, bottom),
        *(_row(timeline, row, _TOP + i * _ROW) for i, row in enumerate(rows)),
    ]
    if not rows:
        parts.append(_text(_LEFT + 8, _TOP + 24, str(timeline), colour=_FAINT))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _length(timeline: "Timeline") -> str:
    whole, batches = timeline.max_duration, timeline.epoch_length
    unit = whole.unit.name.lower() if whole.value == 1 else whole.unit.plural
    of_batches = f", each of {batches} batches" if batches and whole.unit is TimeUnit.EPOCH else ""
    return f"{str(whole).removesuffix(whole.unit.value)} {unit}{of_batches}"


def _x(fraction: Fraction) -> float:
    return _LEFT + float(fraction) * (_WIDTH - _RIGHT - _LEFT)


def _hatchings(stages: set[Stage]) -> str:
    return "\n".join(
        f'<pattern id="hatched-{stage.name.lower()}" width="8" height="8" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="8" height="8" fill="{_COLOURS[stage]}" opacity="0.12"/>'
        f'<rect width="2.5" height="8" fill="{_COLOURS[stage]}" opacity="0.45"/></pattern>'
        for stage in sorted(stages)
    )


def _row(timeline: "Timeline", row: "Row", top: float) -> str:
    said = ", ".join(map(timeline.say, row.spans)) or "never"
    name = row.name if len(row.name) <= 22 else f"{row.name[:21]}…"
    middle = top + _ROW / 2
    return "\n".join(
        [
            f"<g><title>{escape(f'{row.name}: {said}')}</title>",
            f'<line x1="{_RIGHT}" y1="{top}" x2="{_WIDTH - _RIGHT}" y2="{top}" stroke="{_GRID}"/>',
            _text(_RIGHT, middle - 1, name, size=13, weight=600),
            _text(_RIGHT, middle + 13, row.stage.name.lower(), colour=_COLOURS[row.stage]),
            *(_span(timeline, row, span, middle) for span in row.spans),
            "</g>",
        ]
    )


def _span(timeline: "Timeline", row: "Row", span: "Span", middle: float) -> str:
    colour, left, right = _COLOURS[row.stage], _x(span.start), _x(span.end)
    words, alone = timeline.say(span), len(row.spans) == 1
    title = f"<title>{escape(words)}</title>"
    if span.start == span.end:
        at = min(max(left, _LEFT + 7.0), _WIDTH - _RIGHT - 7.0)
        diamond = f'<path d="M{at:.1f} {middle - 7} l7 7 l-7 7 l-7 -7 z" fill="{colour}">'
        beside = _words(words, at, at, middle, alone=alone, on="nothing")
        return f"{diamond}{title}</path>{beside}"
    hatched = f"url(#hatched-{row.stage.name.lower()})"
    fill, on = (hatched, "hatching") if span.conditions else (colour, "colour")
    bar = (
        f'<rect x="{left:.1f}" y="{middle - _BAR / 2}" width="{right - left:.1f}" height="{_BAR}" '
        f'rx="{min(3.0, (right - left) / 2):.1f}" fill="{fill}" stroke="{colour}">{title}</rect>'
    )
    return bar + _words(words, left, right, middle, alone=alone, on=on)


def _words(words: str, left: float, right: float, middle: float, *, alone: bool, on: str) -> str:
    """The words of a span: in it where they fit, else beside it where it is the only one."""
    y, width = middle + 4, _LETTER * len(words)
    if width + 16 <= right - left:
        return _inside(words, left, middle, on)
    if not alone:
        return ""  # its title has them
    if right + 12 + width <= _WIDTH - _RIGHT:
        return _text(right + 12, y, words)
    if left - 12 - width >= _LEFT:
        return _text(left - 12, y, words, anchor="end")
    letters = int((_WIDTH - _RIGHT - left - 20) / _LETTER)
    return _inside(f"{words[:letters]}…", left, middle, on)


def _inside(words: str, left: float, middle: float, on: str) -> str:
    """Words on a span: white on its colour, or dark on a white ground on its hatching."""
    if on == "colour":
        return _text(left + 8, middle + 4, words, colour="#ffffff")
    ground = (
        f'<rect x="{left + 5:.1f}" y="{middle - 7}" width="{_LETTER * len(words) + 6:.1f}" '
        'height="14" rx="2" fill="#ffffff"/>'
    )
    return ground + _text(left + 8, middle + 4, words)


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 11,
    colour: str = _INK,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def _axis(timeline: "Timeline", bottom: float) -> list[str]:
    """Lines at round times, with the time in its own unit, in batches, and as a fraction."""
    parts = []
    for fraction in _ticks(timeline.max_duration):
        x = _x(fraction)
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom + 6}" stroke="{_GRID}"/>'
        )
        value = fraction * timeline.max_duration.value
        said = [str(Time(value, timeline.max_duration.unit))]
        if timeline.max_duration.unit is TimeUnit.EPOCH and timeline.epoch_length:
            said.append(str(Time(value * timeline.epoch_length, TimeUnit.BATCH)))
        said.append(f"{float(fraction):.2g}")
        for i, words in enumerate(said):
            colour = _FAINT if i else _INK
            parts.append(_text(x, bottom + 20 + 14 * i, words, colour=colour, anchor="middle"))
    parts.append(
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}" stroke="{_FAINT}"/>'
    )
    return parts


def _ticks(whole: Time) -> list[Fraction]:
    """The beginning, the end, and at most nine round times between them."""
    steps = (Fraction(digit * 10**power) for power in range(18) for digit in (1, 2, 5))
    step = next(step for step in steps if whole.value <= 10 * step)
    if whole.unit is TimeUnit.SECOND and whole.value <= 10:
        step = Fraction(whole.value) / 10
    ticks = [k * step / whole.value for k in range(int(whole.value // step) + 1)]
    if 1 - ticks[-1] < step / whole.value / 2:
        ticks.pop()
    return [*ticks, Fraction(1)]
