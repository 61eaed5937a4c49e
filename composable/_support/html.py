"""HTML for notebooks: self-contained, escaped, and in the colors of the notebook."""

import math
from collections.abc import Iterable, Sequence

_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"
_MOST_POINTS = 300
_WIDTH, _HEIGHT = 180, 28


class Markup(str):
    """A string that is HTML already."""

    __slots__ = ()


def escape(text: str) -> str:
    """Return a text as HTML."""
    from html import escape  # on use: few runs are shown in a notebook

    return escape(text)


def panel(title: str, *parts: str) -> str:
    """Return a title and parts below it.

    Args:
        title: A text.
        parts: HTML.
    """
    # No colors of its own: they would be unreadable in either the light or the dark theme.
    head = f'<div style="font-weight:bold;margin-bottom:4px">{escape(title)}</div>'
    style = "color:inherit;background:transparent;font-size:90%"
    return f'<div style="{style}">{head}{"".join(parts)}</div>'


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return a table; cells are texts, unless they are `Markup`.

    Example:
        >>> from composable._support.html import table
        >>> "&lt;b&gt;" in table([("name", "<b>")])
        True
    """
    head = "".join(f'<th style="{_CELL};opacity:0.7">{escape(one)}</th>' for one in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        '<table style="border-collapse:collapse;color:inherit;background:transparent;margin:0">'
        f"{f'<tr>{head}</tr>' if header else ''}{body}</table>"
    )


def _cell(value: object) -> str:
    content = value if isinstance(value, Markup) else escape(str(value))
    return f'<td style="{_CELL}">{content}</td>'


def details(summary: str, content: str) -> str:
    """Return HTML that is shown when its summary is clicked."""
    return (
        f'<details><summary style="cursor:pointer">{escape(summary)}</summary>{content}</details>'
    )


def sparkline(values: Sequence[float]) -> Markup:
    """Return a small curve of the finite values, without axes."""
    step = math.ceil(len(values) / _MOST_POINTS) or 1
    points = [(i, v) for i, v in list(enumerate(values))[::step] if math.isfinite(v)]
    if len(points) < 2:
        return Markup("")
    low, high = min(v for _, v in points), max(v for _, v in points)
    # Halved, so that the difference of two large floats stays finite.
    span, last = (high / 2 - low / 2) or 1.0, max(len(values) - 1, 1)
    drawn = " ".join(
        f"{i / last * _WIDTH:.1f},{_HEIGHT - 2 - (v / 2 - low / 2) / span * (_HEIGHT - 4):.1f}"
        for i, v in points
    )
    return Markup(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'role="img" aria-label="curve"><polyline fill="none" stroke="currentColor" '
        f'stroke-width="1.2" points="{drawn}"/></svg>'
    )
