"""The long language comparison beside the line that counting reaches, for the page of evidence."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks import language_long
from composable.comparison import Comparison
from tools.claims import Counted
from tools.comparisons import against

__all__ = ["counted_of_the_read_text", "line_lines"]

ARMS = tuple(language_long.OF_ARM)


@cache
def line() -> Mapping[str, Any]:
    """Load the tables."""
    found: Mapping[str, Any] = json.loads((language_long.STORED / "line.json").read_text())
    return found


def counted_of_the_read_text() -> Counted:
    """Return the best table of what the longest runs read."""
    longest = language_long.SECONDS[-1]
    found = min(
        (one for one in line()["tables"] if one["after"] == longest and one["seconds"] <= longest),
        key=lambda one: float(one["nats_per_byte"]),
    )
    name = f"{found['n']}-grams of {found['vocabulary']:,} tokens of as much text as runs read"
    return Counted(name, found["nats_per_byte"], found["seconds"])


def line_lines() -> list[str]:
    """Render the results of both arms, and the line, after each schedule."""
    comparison = Comparison.load(language_long.STORED)
    means = {
        arm: {
            seconds: quality.mean
            for seconds, quality in zip(
                sorted(language_long.SCHEDULES[arm]),
                sorted(comparison.analysis[arm].qualities, key=lambda one: one.steps),
                strict=True,
            )
        }
        for arm in ARMS
    }
    tables = line()["tables"]
    head = [*(f"counted, tokens of {arm}" for arm in ARMS), *ARMS]
    rows = [
        [
            f"{seconds:.0f}",
            *(f"{language_long.reached(tables, arm, seconds):.3f}" for arm in ARMS),
            *(_shown(means[arm].get(seconds)) for arm in ARMS),
        ]
        for seconds in language_long.SECONDS
    ]
    whole = min(one["nats_per_byte"] for one in line()["whole text"])
    speedups = (
        f"{target} nats per byte: {against(comparison, ARMS[0], target).speedup(ARMS[1]) or '–'}"
        for target in language_long.TARGETS
    )
    return [
        "Nats per byte, and what counting reaches in as many seconds on as much text:",
        "",
        f"| seconds | {' | '.join(head)} |",
        f"|{' --- |' * (1 + len(head))}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"A table of the whole training text reaches {whole:.3f}. The speed-up at the targets that "
        f"were fixed before: {'; '.join(speedups) or 'none'}.",
    ]


def _shown(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"
