"""Descriptions of a plan: its steps, the table that `Plan.explain` prints, and plain data."""

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any, TypeAlias

import attrs

from composable._support.html import details, panel, table
from composable._support.table import format_table
from composable.core.algorithm import Algorithm, Remark
from composable.core.callback import Callback, hooks_of
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.plan.compatibility import Caveat
from composable.plan.ordering import explain_position

Plan: TypeAlias = Any
"""A `Plan`, whose module imports this one."""


@attrs.frozen
class PlanStep:
    """One step of a plan: what runs at an event, on which fields, and why in this position."""

    event: Event
    who: str
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    why: str


def steps_of(plan: Plan, *, observers: bool = True) -> list[PlanStep]:
    """Describe the steps of a plan, in the order of the events; without its callbacks on demand."""
    hooks = [(one, hooks_of(one)) for one in plan.callbacks] if observers else []
    steps = []
    for event in Event:
        here = plan.transforms(event)
        steps += [
            PlanStep(
                event,
                one.name,
                one.stage.name.lower(),
                tuple(sorted(one.reads)),
                tuple(sorted(one.writes)),
                explain_position(event, here, i, plan.algorithms),
            )
            for i, one in enumerate(here)
        ]
        steps += [
            PlanStep(event, one.name, "watches", (), (), _explain_callback(plan, one))
            for one, events in hooks
            if event in events
        ]
    return steps


def _explain_callback(plan: Plan, callback: Callback) -> str:
    """Explain the position of a callback."""
    if isinstance(callback, LoggerDestination):
        return "records metrics, after all callbacks"
    if any(callback is one for one in plan.builtin_callbacks):
        return "observes, the library's own first"
    if any(callback is one for one in plan.global_callbacks):
        return "observes, global ones after yours"
    return "observes, in list order"


def format_plan(plan: Plan, *, observers: bool, width: int | None) -> str:
    """Format a plan as a table of its steps, followed by its callbacks and caveats."""
    width = width or shutil.get_terminal_size().columns
    rows = [(*row[:3], *row[4:]) for row in _rows(steps_of(plan, observers=observers))]
    table = format_table(rows, (*_COLUMNS[:3], *_COLUMNS[4:]), width=width) if rows else ""
    notes = [f"{_label(caveat)}: {caveat}" for caveat in (*plan.caveats, *plan.remarks)]
    if plan.callbacks and not observers:
        names = ", ".join(callback.name for callback in plan.callbacks)
        notes.insert(0, f"Callbacks, listed with observers=True: {names}.")
    if plan.updates:
        listed = ", ".join(one.summary for one in plan.updates)
        notes.insert(0, f"Updates of each step, in this order: {listed}.")
    wrapped = [textwrap.fill(note, width, break_on_hyphens=False) for note in notes]
    return "\n\n".join([*filter(None, [table]), *wrapped]) or _EMPTY


def plan_html(plan: Plan) -> str:
    """Format a plan for notebooks: its algorithms, its caveats, and its steps on a click."""
    steps = steps_of(plan)
    if not steps:
        return panel(_EMPTY)
    short = [(one.name, one.stage.name.lower(), repr(one)) for one in plan.algorithms]
    warnings = [(_label(caveat).lower(), caveat) for caveat in (*plan.caveats, *plan.remarks)]
    return panel(
        f"Plan: {len(plan.algorithms)} algorithms",
        table(short, ("algorithm", "stage", "value")) if short else "",
        table(warnings) if warnings else "",
        details(f"{len(steps)} steps", table(_rows(steps), _COLUMNS)),
    )


def _label(caveat: Caveat | Remark) -> str:
    return "Caveat" if isinstance(caveat, Caveat) else "Remark"


_EMPTY = "The plan is empty: the loop runs alone."
_COLUMNS = ("event", "who", "stage", "reads", "writes", "why here")


def _rows(steps: Iterable[PlanStep]) -> list[tuple[str, ...]]:
    return [
        (
            step.event.value,
            step.who,
            step.stage,
            ", ".join(step.reads) or "-",
            ", ".join(step.writes) or "-",
            step.why,
        )
        for step in steps
    ]


def as_data(plan: Plan) -> dict[str, Any]:
    """Convert a plan to plain data: see `Plan.to_dict`."""
    return {
        "version": 1,
        "algorithms": {algorithm.name: _describe(algorithm) for algorithm in plan.algorithms},
        "callbacks": [callback.name for callback in plan.callbacks],
        "updates": [one.name for one in plan.updates],
        "caveats": [{**attrs.asdict(one), "kind": one.kind.__name__} for one in plan.caveats],
        "steps": [{**attrs.asdict(one), "event": one.event.value} for one in steps_of(plan)],
    }


def _describe(algorithm: Algorithm) -> dict[str, Any]:
    return {
        "call": repr(algorithm),
        "class": type(algorithm).__name__,
        "stage": algorithm.stage.name.lower(),
        "events": [event.value for event in Event if event in algorithm.events],
        "reads": sorted(algorithm.reads),
        "writes": sorted(algorithm.writes),
        "before": _names(algorithm.before),
        "after": _names(algorithm.after),
        "incompatible_with": _names(algorithm.incompatible_with),
        "discouraged_with": _names(algorithm.discouraged_with),
        "replaces": sorted(algorithm.replaces),
        "parts": [{"name": part.name, **_describe(part)} for part in algorithm.parts],
    }


def _names(kinds: Iterable[type | str]) -> list[str]:
    return sorted(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)
