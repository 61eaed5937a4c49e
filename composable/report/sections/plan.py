"""The plan of the runs, and when each algorithm is active."""

from collections.abc import Sequence
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join, scrolling_table
from composable.report.lines import as_number, short_text
from composable.report.sections._common import (
    as_dicts,
    fold,
    label_of,
    list_or_empty,
    note_of,
    plan_of,
    run_numbers,
)

__all__ = ["plan"]


def plan(comparison: RunComparison) -> HTML | None:
    """Show when each algorithm is active, and the steps of the plan."""
    alike: dict[str, list[int]] = {}
    for index, run in enumerate(comparison.runs):
        key = repr([plan_of(run).get("timeline"), run.configuration.get("algorithms")])
        if plan_of(run):
            alike.setdefault(key, []).append(index)
    return join(*(_plan_of(comparison, runs) for runs in alike.values())) if alike else None


def _plan_of(comparison: RunComparison, runs: Sequence[int]) -> HTML:
    run = comparison.runs[runs[0]]
    names = [element("span", label_of(comparison, index)) for index in runs]
    heading = element("h3", *names) if len(comparison.runs) > 1 else HTML("")
    timeline = _timeline(
        as_dicts(plan_of(run).get("timeline")), run.configuration.get("max_duration")
    )
    steps = as_dicts(plan_of(run).get("steps"))
    calls = run.configuration.get("algorithms")
    listed = calls.values() if isinstance(calls, dict) else ()
    code = element("pre", "\n".join(map(short_text, listed))) if listed else HTML("")
    columns = ("event", "who", "stage", "why")
    rows = [
        element("tr", *(element("td", short_text(step.get(name, ""))) for name in columns))
        for step in steps
    ]
    steps_table = fold(f"Steps in their order ({len(rows)})", scrolling_table(list(columns), rows))
    return element(
        "div", heading, timeline, code, steps_table if rows else "", data_runs=run_numbers(runs)
    )


def _timeline(rows: list[dict[str, Any]], whole: Any) -> HTML:
    if not rows:
        return note_of("No algorithms.")
    built = []
    for row in rows:
        spans = list_or_empty(row.get("spans"))
        bars = [_span(span, whole) for span in spans if isinstance(span, list) and len(span) == 3]
        name = element("b", short_text(row.get("name", "")))
        stage = element("small", short_text(row.get("stage", "")))
        built += [
            element("div", name, stage, class_="track-name"),
            element("div", *bars, class_="track"),
        ]
    scale = ["0", "¼", "½", "¾", short_text(whole) if isinstance(whole, str) else "1"]
    ticks = element("div", *(element("span", tick) for tick in scale), class_="ticks")
    return element("div", *built, element("div"), ticks, class_="timeline")


def _span(span: list[Any], whole: Any) -> HTML:
    start, end = (min(max(as_number(value) or 0.0, 0.0), 1.0) for value in span[:2])
    conditions = [short_text(one) for one in list_or_empty(span[2])]
    limits = f"{start:.0%} to {end:.0%}" if end > start else f"once, at {start:.0%}"
    text = ", ".join([f"{limits} of {short_text(whole)}", *conditions])
    kind = "once" if end <= start else "sometimes" if conditions else "always"
    style = f"left:{100 * start:.3f}%;width:{100 * max(end - start, 0):.3f}%"
    return element("span", class_=kind, style=style, title=text)
