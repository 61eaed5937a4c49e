"""Where the configurations of runs differ, and all their settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from composable.report.comparison import RunComparison, first_different_batch
from composable.report.sections._common import format_number
from composable.report.short_calls import short_calls

__all__ = ["all_settings", "differences"]

_WITHOUT_EFFECT = ("arguments",)  # folders, as a rule


def differences(comparison: RunComparison) -> dict[str, Any]:
    """List the settings and facts that differ, and from which batch on the runs do."""
    if len(comparison.runs) == 1:
        return {}
    found = {**comparison.differing(comparison.settings), **comparison.differing(comparison.system)}
    shown = {name: row for name, row in found.items() if not name.startswith(_WITHOUT_EFFECT)}
    rows = [(name, _by_group(comparison, row)) for name, row in shown.items()]
    if len(comparison.groups) > 1:
        rows = [(name, texts) for name, texts in rows if len(set(texts)) > 1]  # not the seeds
    return {
        "equal": not shown,
        "rows": [(name, short_calls(texts)) for name, texts in rows],
        "partings": _partings(comparison),
    }


def _by_group(comparison: RunComparison, row: Sequence[str]) -> list[str]:
    """Return the values of a setting in each group, whose runs differ in the seed alone."""
    return [", ".join(dict.fromkeys(row[run] for run in group)) for group in comparison.groups]


def _partings(comparison: RunComparison) -> dict[str, list[int]]:
    """Tell from which batch on each run differs from the first one."""
    outcomes: dict[str, list[int]] = {}
    for index in range(1, len(comparison.runs)):
        batch, compared = first_different_batch(comparison.runs[0], comparison.runs[index])
        if not compared:
            text = "no batch in common"
        elif batch is None:
            text = (
                f"bit-identical losses and learning rates in all {format_number(compared)} batches"
            )
        else:
            text = f"other losses or learning rates from batch {format_number(batch)} on"
        outcomes.setdefault(text, []).append(index)
    return outcomes


def all_settings(comparison: RunComparison) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return the tables of all hyperparameters and of facts about the system."""
    modules = {n: v for n, v in comparison.settings.items() if n.split("/")[0] == "modules"}
    settings = {n: v for n, v in comparison.settings.items() if n not in modules}
    tables = {
        "Hyperparameters and data": settings,
        "Layers of the model": modules,
        "System": comparison.system,
    }
    return {summary: values for summary, values in tables.items() if values}
