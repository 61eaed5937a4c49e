"""The result of a comparison as Markdown, for a README or the card of a method."""

import re
from collections.abc import Iterator, Sequence

from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.table import HEADER, arm_row, count, count_trials
from composable.comparison.output.wording import (
    clock_seconds,
    describe_target,
    format_settings,
    headline,
    noise_floor,
    notes,
    verdict_name,
)
from composable.comparison.records import Study
from composable.core._printable import printable

__all__ = ["format_markdown"]


def format_markdown(study: Study, analysis: Analysis) -> str:
    """Format a comparison as Markdown: one table, a sentence for each verdict, and the command.

    Args:
        study: The study.
        analysis: Its analysis.
    """
    return "\n\n".join(_blocks(study, analysis)) + "\n"


def _blocks(study: Study, analysis: Analysis) -> Iterator[str]:
    protocol = study.protocol
    better = "higher" if analysis.mode == "max" else "lower"
    yield f"**{_escape(headline(study, analysis))}.**"
    yield (
        f"{_escape(analysis.metric)} ({better} is better), target "
        f"{_escape(describe_target(analysis, protocol))}; {count(len(protocol.seeds), 'seed')}, "
        f"{count_trials(study)}; time in {clock_seconds(protocol)} of training; 95 % intervals; "
        "p after Holm’s correction."
    )
    header = (HEADER[0], "settings", *HEADER[1:])
    rows = [
        (name, format_settings(arm.settings), *cells)
        for arm in analysis.arms
        for name, *cells in [arm_row(arm)]
    ]
    yield "\n".join([_row(header), _row(["---"] * len(header)), *(map(_row, rows))])
    sentences = [
        f"- **{_escape(arm.arm)}: {verdict_name(arm)}.** {_sentence(arm.why)}"
        for arm in analysis.arms
        if arm.verdict is not None
    ]
    warnings = [f"- {_sentence(note)}" for note in notes(analysis)]
    yield "\n".join([*sentences, f"- {_escape(noise_floor(analysis))}", *warnings])
    if protocol.command is not None:
        yield f"To repeat it:\n\n{_code(protocol.command)}"
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    if versions:
        yield f"Measured with {_escape(versions)}."


def _row(cells: Sequence[str]) -> str:
    escaped = (cell if cell == "---" else _escape(cell) for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _sentence(text: str) -> str:
    text = _escape(text)
    return (text[:1].upper() + text[1:]).rstrip(".") + "." if text else ""


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
