"""The plan of the runs, and when each algorithm is active."""

from typing import Any

from composable.report.comparison import RunComparison
from composable.report.lines import as_number, short_text
from composable.report.recorded_run import RecordedRun
from composable.report.sections._common import as_dicts, list_or_empty, plan_of

__all__ = ["plan"]


def plan(comparison: RunComparison) -> list[dict[str, Any]]:
    """List the different plans: their runs, when each algorithm is active, and their steps."""
    alike: dict[str, list[int]] = {}
    for index, run in enumerate(comparison.runs):
        key = repr([plan_of(run).get("timeline"), run.configuration.get("algorithms")])
        if plan_of(run):
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
        for row in as_dicts(plan_of(run).get("timeline"))
    ]
    steps = [
        [short_text(step.get(name, "")) for name in ("event", "who", "stage", "why")]
        for step in as_dicts(plan_of(run).get("steps"))
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
