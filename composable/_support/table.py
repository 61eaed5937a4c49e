"""Plain-text tables with aligned columns."""

import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

_LONGEST = 50  # characters of a word that is not broken


def format_table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str] | None = None,
    *,
    indent: str = "",
    max_width: int = sys.maxsize,
    width: int = sys.maxsize,
) -> str:
    """Format rows as lines with left-aligned columns, two spaces apart.

    Args:
        rows: The cells of each row; all rows have the same number of cells.
        header: The titles of the columns, underlined with dashes.
        indent: The text at the start of each line.
        max_width: The width beyond which a cell is not padded for; it overflows its column.
        width: The width of a line; the cells of the widest columns are wrapped to reach it,
            and words of more than 50 characters are broken.

    Example:
        >>> print(format_table([("weight", "[3, 4]"), ("bias", "[3]")], ("name", "shape")))
        name    shape
        ------  ------
        weight  [3, 4]
        bias    [3]
    """
    table = [*([header] if header else []), *rows]
    widths = [min(max(map(len, column)), max_width) for column in zip(*table, strict=True)]
    if width < sys.maxsize:
        words = (_longest_word(column) for column in zip(*table, strict=True))
        widths = _fit(widths, [min(word, _LONGEST) for word in words], width)
    if header:
        table.insert(1, ["-" * number for number in widths])
    if width < sys.maxsize:
        table = [line for row in table for line in _wrap(row, widths)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    return "\n".join(indent + line for line in lines)


def _fit(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Narrow the widest columns, none below its least width, until a line has this width."""
    widths, excess = list(widths), sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0 and (slack := [i for i, n in enumerate(widths) if n > least[i]]):
        widths[max(slack, key=lambda i: widths[i])] -= 1
        excess -= 1
    return widths


def _longest_word(column: Iterable[str]) -> int:
    return max(len(word) for cell in column for word in (cell.split() or [""]))


def _wrap(row: Sequence[str], widths: Sequence[int]) -> Iterable[Sequence[str]]:
    """Split a row into the lines that its widest cell needs."""
    cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    return zip_longest(*cells, fillvalue="")
