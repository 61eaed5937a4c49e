"""How the runs are configured: where they differ, all their settings, and their plans."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from composable.report.comparison import RunComparison, first_different_batch
from composable.report.lines import as_dicts, as_number, format_number, list_or_empty, short_text
from composable.report.recorded_run import RecordedRun

__all__ = ["all_settings", "differences", "plan"]

_WITHOUT_EFFECT = ("arguments",)  # folders, as a rule


def differences(comparison: RunComparison) -> dict[str, Any]:
    """List the settings and facts that differ, and from which batch on the runs do."""
    if len(comparison.runs) == 1:
        return {}
    found = {**comparison.differing(comparison.settings), **comparison.differing(comparison.system)}
    shown = {name: row for name, row in found.items() if not name.startswith(_WITHOUT_EFFECT)}
    by_group = {  # runs of a group differ in the seed alone
        name: [", ".join(dict.fromkeys(row[run] for run in group)) for group in comparison.groups]
        for name, row in shown.items()
    }
    rows = list(by_group.items())
    if len(comparison.groups) > 1:
        rows = [(name, texts) for name, texts in rows if len(set(texts)) > 1]  # not the seeds
    return {
        "equal": not shown,
        "rows": [(name, short_calls(texts)) for name, texts in rows],
        "partings": _partings(comparison),
    }


def _partings(comparison: RunComparison) -> dict[str, list[int]]:
    """Tell from which batch on each run differs from the first one."""
    outcomes: dict[str, list[int]] = {}
    for index in range(1, len(comparison.runs)):
        batch, compared = first_different_batch(comparison.runs[0], comparison.runs[index])
        text = f"other losses or learning rates from batch {format_number(batch)} on"
        if not compared:
            text = "no batch in common"
        elif batch is None:
            count = format_number(compared)
            text = f"bit-identical losses and learning rates in all {count} batches"
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


# --- plans ---


def plan(comparison: RunComparison) -> list[dict[str, Any]]:
    """List the different plans: their runs, when each algorithm is active, and their steps."""
    alike: dict[str, list[int]] = {}
    for index, run in enumerate(comparison.runs):
        key = repr([run.plan.get("timeline"), run.configuration.get("algorithms")])
        if run.plan:
            alike.setdefault(key, []).append(index)
    return [{"runs": runs, **_describe(comparison.runs[runs[0]])} for runs in alike.values()]


def _describe(run: RecordedRun) -> dict[str, Any]:
    whole, calls = run.configuration.get("max_duration"), run.configuration.get("algorithms")
    timeline = [
        (
            short_text(row.get("name", "")),
            short_text(row.get("stage", "")),
            [
                _span(span, whole)
                for span in list_or_empty(row.get("spans"))
                if isinstance(span, list) and len(span) == 3
            ],
        )
        for row in as_dicts(run.plan.get("timeline"))
    ]
    steps = [
        [short_text(step.get(name, "")) for name in ("event", "who", "stage", "why")]
        for step in as_dicts(run.plan.get("steps"))
    ]
    return {
        "timeline": timeline,
        "end": short_text(whole) if isinstance(whole, str) else "1",
        "calls": [short_text(call) for call in calls.values()] if isinstance(calls, dict) else [],
        "steps": steps,
    }


def _span(span: list[Any], whole: Any) -> tuple[str, str, str]:
    start, end = (min(max(as_number(value) or 0.0, 0.0), 1.0) for value in span[:2])
    conditions = [short_text(one) for one in list_or_empty(span[2])]
    limits = f"{start:.0%} to {end:.0%}" if end > start else f"once, at {start:.0%}"
    text = ", ".join([f"{limits} of {short_text(whole)}", *conditions])
    kind = "once" if end <= start else "sometimes" if conditions else "always"
    style = f"left:{100 * start:.3f}%;width:{100 * max(end - start, 0):.3f}%"
    return kind, style, text


# --- calls with few arguments ---


def short_calls(calls: Sequence[str]) -> list[str]:
    """Shorten the calls of one function to the arguments that say something.

    Arguments that are None or False are omitted, and those that are equal in all of several
    calls, as long as one remains.

    Args:
        calls: Expressions of Python; others are returned as they are.

    Example:
        >>> from composable.report.sections.settings import short_calls
        >>> short_calls(
        ...     ["MixUp(alpha=0.2, per_sample=False)", "MixUp(alpha=0.4, per_sample=False)"]
        ... )
        ['MixUp(alpha=0.2)', 'MixUp(alpha=0.4)']
        >>> short_calls(["EMA(half_life=Time('20ba'), smoothing=None, ema_start=Time('0dur'))", ""])
        ["EMA(half_life='20ba', ema_start='0dur')", '']
    """
    parsed = [_parse(call) for call in calls]
    given = [call for call in parsed if call is not None]
    common = set.intersection(*map(_arguments, given)) if len(given) > 1 else set()
    return [
        text if call is None else _shorten(call, common)
        for text, call in zip(calls, parsed, strict=True)
    ]


def _parse(text: str) -> ast.Call | None:
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return parsed if isinstance(parsed, ast.Call) else None


def _arguments(call: ast.Call) -> set[tuple[str | None, str]]:
    return {(one.arg, ast.unparse(one.value)) for one in call.keywords}


def _shorten(call: ast.Call, common: set[tuple[str | None, str]]) -> str:
    kept = [one for one in call.keywords if ast.unparse(one.value) not in ("None", "False")]
    differing = [one for one in kept if (one.arg, ast.unparse(one.value)) not in common]
    call.keywords = differing or kept[:1]
    return ast.unparse(_Times().visit(call))


class _Times(ast.NodeTransformer):
    """Replaces `Time('1ep')` by `'1ep'`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "Time" and len(node.args) == 1:
            return node.args[0]
        return node
