"""A comparison as text and as Markdown."""

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.tables import (
    arms_table,
    costs_table,
    headline,
    notes,
    sentences,
    summary,
)
from composable.comparison.records import Study
from composable.core._printable import printable
from composable.core._table import format_table

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["LEGEND", "format_markdown", "format_text"]

_WIDTH = 100
LEGEND = (
    "speed-up: the baseline's cost of reaching a result divided by the arm's, the mean over the "
    "results that both reach, with its 95 % interval. worst to best result: the speed-up at the "
    "worst of them, in the middle, and at the best. covered: the share of the baseline's range of "
    "results that the arm reaches as well. p: after Holm's correction over the arms. set-up: with "
    "compilation and the first steps; not part of the cost. detectable: the smallest speed-up that "
    "this number of seeds finds with probability 0.8. seeds: those that find the observed one."
)


def format_text(study: Study, analysis: Analysis) -> str:
    """Format a comparison as text of at most 100 columns."""
    lines = [_wrap(line, "", "  ") for line in sentences(analysis)]
    sections = [
        _wrap(f"{headline(study, analysis)}.") + "\n" + _wrap(summary(study)),
        _narrow(arms_table(analysis)),
        "\n".join(lines),
        _narrow(costs_table(study, analysis)),
        _wrap(LEGEND),
    ]
    if warnings := notes(analysis):
        sections.append("\n".join(_wrap(note, "- ", "  ") for note in warnings))
    return "\n\n".join(sections)


def _narrow(frame: "DataFrame") -> str:
    """Format a table of at most 100 columns: the names in the first column are wrapped."""
    header, rows = list(frame.columns), frame.to_numpy().tolist()
    widths = [max(map(len, column)) for column in list(zip(header, *rows, strict=True))[1:]]
    room = max(_WIDTH - sum(widths) - 2 * len(widths), 8)
    lines: list[Sequence[str]] = []
    for name, *cells in rows:
        first, *more = textwrap.wrap(name, room) or [""]
        lines.append((first, *cells))
        lines += [(part, *[""] * len(cells)) for part in more]
    return format_table(lines, header)


def _wrap(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(printable(text), _WIDTH, initial_indent=first, subsequent_indent=later)


def format_markdown(study: Study, analysis: Analysis) -> str:
    """Format a comparison as Markdown: one table, a sentence for each verdict, and the command."""
    protocol = study.protocol
    listed = [f"- {_sentence(line)}" for line in (*sentences(analysis), *notes(analysis))]
    blocks = [
        f"**{_escape(headline(study, analysis))}.**",
        f"{_escape(summary(study))}; 95 % intervals; p after Holm’s correction.",
        _markdown_table(arms_table(analysis)),
        "\n".join(listed),
    ]
    if protocol.command is not None:
        blocks.append(f"To repeat it:\n\n{_code(protocol.command)}")
    if protocol.versions:
        versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
        blocks.append(f"Measured with {_escape(versions)}.")
    return "\n\n".join(blocks) + "\n"


def _markdown_table(frame: "DataFrame") -> str:
    rows = [list(frame.columns), *frame.to_numpy().tolist()]
    lines = [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _sentence(text: str) -> str:
    text = _escape(text)
    return (text[:1].upper() + text[1:]).rstrip(".") + "."


def _escape(text: str) -> str:
    """Escape the characters that Markdown and HTML interpret, in one line."""
    line = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_\[\]|<>#~])", r"\\\1", line).replace("&", "&amp;")


def _code(command: str) -> str:
    """Return a fenced block, whose fence does not occur in the command."""
    text = "\n".join(printable(line) for line in command.splitlines())
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"
