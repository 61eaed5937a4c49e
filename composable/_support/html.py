"""HTML for notebooks: self-contained, escaped, and in the colors of the notebook."""

from collections.abc import Iterable, Sequence

_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


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


def table(rows: Iterable[Sequence[object]]) -> str:
    """Return a table; its cells are texts.

    Example:
        >>> from composable._support.html import table
        >>> "&lt;b&gt;" in table([("name", "<b>")])
        True
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        '<table style="border-collapse:collapse;color:inherit;background:transparent;margin:0">'
        f"{body}</table>"
    )


def _cell(value: object) -> str:
    return f'<td style="{_CELL}">{escape(str(value))}</td>'
