"""Descriptions of a plan: its steps, and the table that `Plan.explain` prints."""

import shutil
import textwrap
from typing import Any, TypeAlias

import attrs

from composable._support.table import format_table
from composable.core.algorithm import Remark
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
    hooks = [(callback, hooks_of(callback)) for callback in plan.callbacks] if observers else []
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
    rows = [_row(step) for step in steps_of(plan, observers=observers)]
    table = format_table(rows, _COLUMNS, width=width) if rows else ""
    notes = [f"{_label(caveat)}: {caveat}" for caveat in (*plan.caveats, *plan.remarks)]
    if plan.callbacks and not observers:
        names = ", ".join(callback.name for callback in plan.callbacks)
        notes.insert(0, f"Callbacks, listed with observers=True: {names}.")
    if plan.updates:
        listed = ", ".join(update.summary for update in plan.updates)
        notes.insert(0, f"Updates of each step, in this order: {listed}.")
    wrapped = [textwrap.fill(note, width, break_on_hyphens=False) for note in notes]
    return "\n\n".join([*filter(None, [table]), *wrapped]) or _EMPTY


def _label(caveat: Caveat | Remark) -> str:
    return "Caveat" if isinstance(caveat, Caveat) else "Remark"


_EMPTY = "The plan is empty: the loop runs alone."
_COLUMNS = ("event", "who", "stage", "writes", "why here")


def _row(step: PlanStep) -> tuple[str, ...]:
    return (step.event.value, step.who, step.stage, ", ".join(step.writes) or "-", step.why)
