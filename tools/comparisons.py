"""Comparisons for the pages of the evidence: as Markdown, and with another arm as the baseline."""

import re
import textwrap

import attrs

from composable._support.printable import printable
from composable.comparison import Comparison
from composable.comparison.records import Study
from composable.comparison.table import (
    arm_rows,
    headline,
    list_notes,
    list_sentences,
    summarize,
)
from composable.comparison.verdict import Analysis

__all__ = ["against", "format_markdown"]


def format_markdown(study: Study, analysis: Analysis) -> str:
    """Format a comparison as Markdown: one table, a sentence for each verdict, and the command."""
    table = arm_rows(study, analysis)
    rows = [[*table[0]], ["---"] * len(table[0]), *([*row.values()] for row in table)]
    lines = [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    told = [_escape(line) for line in (*list_sentences(analysis), *list_notes(analysis))]
    names = tuple(f"{_escape(one.arm)}:" for one in analysis.arms)
    told = [one if one.startswith(names) else one[:1].upper() + one[1:] for one in told]
    blocks = [
        f"**{_escape(headline(study, analysis))}.**",
        f"{_escape(summarize(study))}; 95 % intervals; p after Holm’s correction.",
        "\n".join(lines),
        "\n".join(f"- {line.rstrip('.')}." for line in told),
    ]
    if (command := study.protocol.command) is not None:
        shown = "\n".join(printable(line) for line in command.splitlines())
        blocks.append(f"To repeat it:\n\n{textwrap.indent(shown, '    ')}")
    if versions := study.protocol.versions:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        blocks.append(f"Measured with {_escape(shown)}.")
    return "\n\n".join(blocks)


def _escape(text: str) -> str:
    """Escape the characters that Markdown and HTML interpret, in one line."""
    line = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_\[\]|<>#~])", r"\\\1", line).replace("&", "&amp;")


def against(comparison: Comparison, baseline: str, target: float | None = None) -> Comparison:
    """Return the comparison of the same trials with another baseline, without the A/A arm."""
    study = comparison.study
    protocol, schedules = study.protocol, study.protocol.schedules
    dropped = None if baseline == protocol.baseline else protocol.repeated
    arms = (baseline, *(arm for arm in protocol.arms if arm not in (baseline, dropped)))
    changed = attrs.evolve(
        protocol,
        arms=arms,
        baseline=baseline,
        repeated=None if dropped else protocol.repeated,
        target=target,
        own_durations={},
        grids={arm: one for arm, one in protocol.grids.items() if arm != dropped},
        chosen={arm: one for arm, one in protocol.chosen.items() if arm != dropped},
    )
    rebased = attrs.evolve(
        study,
        protocol=changed.with_schedules({arm: schedules[arm] for arm in arms}),
        results=tuple(one for one in study.results if one.trial.arm != dropped),
        costs=tuple(one for one in study.costs if one.arm != dropped),
    )
    return Comparison(rebased)
