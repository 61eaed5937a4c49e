"""The long language comparison beside the line that counting reaches, for the page of evidence."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from composable.comparison import Comparison
from tests.support.cases import ROOT
from tools.claims import Counted
from tools.comparisons import against

__all__ = ["counted_of_the_read_text", "line_lines"]

FOLDER = ROOT / "docs/evidence/language-long"


@cache
def line() -> Mapping[str, Any]:
    """Load the tables."""
    found: Mapping[str, Any] = json.loads((FOLDER / "line.json").read_text())
    return found


def counted_of_the_read_text() -> Counted:
    """Return the best table of as much text as the longest runs read, in at most their seconds."""
    tables = line()["tables"]
    longest = max(one["after"] for one in tables)
    in_time = [one for one in tables if one["after"] == longest and one["seconds"] <= longest]
    best = min(in_time, key=lambda one: float(one["nats_per_byte"]))
    name = f"{best['n']}-grams of {best['vocabulary']:,} tokens of as much text as a run reads"
    return Counted(name, best["nats_per_byte"], best["seconds"])


def line_lines() -> list[str]:
    """Render the results of both arms and the line after each schedule, and at the targets."""
    from benchmarks import language_long  # on use: it needs the examples of studies

    comparison, arms = Comparison.load(FOLDER), list(language_long.SCHEDULES)
    losses = {arm: _losses(comparison, arm, language_long.SCHEDULES[arm]) for arm in arms}
    head = ["seconds", *(f"counted, as much as {arm} reads" for arm in arms), *arms]
    rows = [
        [
            f"{after:.0f}",
            *(f"{language_long.reached(line()['tables'], arm, after):.3f}" for arm in arms),
            *(losses[arm].get(after, "–") for arm in arms),
        ]
        for after in language_long.SECONDS
    ]
    whole = min(line()["whole text"], key=lambda one: float(one["nats_per_byte"]))
    baseline, recipe = arms
    below = [arm for arm in arms if min(losses[arm].values()) < f"{whole['nats_per_byte']:.3f}"]
    speedups = (
        f"{against(comparison, baseline, target).speedup(recipe)} at {target}"
        for target in language_long.TARGETS
    )
    return [
        "Nats per byte of the test, and of the best counted table:",
        "",
        *(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)),
        "",
        f"A table of {whole['n']}-grams of the whole training text, which takes "
        f"{whole['seconds']:.0f} CPU seconds, reaches {whole['nats_per_byte']:.3f}; below it "
        f"within these schedules: {', '.join(below) or 'none'}. At the targets that were fixed "
        f"before, {recipe} is faster by {', '.join(speedups)} nats per byte.",
    ]


def _losses(comparison: Comparison, arm: str, schedules: tuple[float, ...]) -> Mapping[float, str]:
    """Return the mean loss after each schedule."""
    qualities = sorted(comparison.analysis[arm].qualities, key=lambda one: one.steps)
    return {
        after: f"{quality.mean:.3f}"
        for after, quality in zip(sorted(schedules), qualities, strict=True)
        if quality.mean is not None
    }
