"""Plain-text tables with aligned columns."""

import sys
from collections.abc import Iterable, Sequence

__all__ = ["format_table"]


def format_table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str] | None = None,
    *,
    indent: str = "",
    max_width: int = sys.maxsize,
) -> str:
    """Format rows as lines with left-aligned columns, two spaces apart.

    Args:
        rows: The cells of each row; all rows have the same number of cells.
        header: The titles of the columns, underlined with dashes.
        indent: The text at the start of each line.
        max_width: The width beyond which a cell is not padded for; it overflows its column.

    Example:
        >>> print(format_table([("weight", "[3, 4]"), ("bias", "[3]")], ("name", "shape")))
        name    shape
        ------  ------
        weight  [3, 4]
        bias    [3]
    """
    table = [*([header] if header else []), *rows]
    widths = [min(max(map(len, column)), max_width) for column in zip(*table, strict=True)]
    if header:
        table.insert(1, ["-" * width for width in widths])
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    return "\n".join(indent + line for line in lines)
