"""Descriptions of a plan: its steps, the table that `Plan.explain` prints, and plain data."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from composable._support.html import details, panel, table
from composable._support.table import format_table
from composable.core.algorithm import Algorithm, Remark, nested
from composable.core.callback import Callback
from composable.core.event import Event
from composable.plan.compatibility import Caveat
from composable.plan.ordering import explain_position

__all__ = ["PlanStep", "algorithm_steps", "as_data", "callback_step", "format_plan", "plan_html"]


@attrs.frozen
class PlanStep:
    """One step of a plan: what runs at an event, on which fields, and why in this position."""

    event: Event
    who: str
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    why: str


def algorithm_steps(event: Event, plan: Sequence[Algorithm]) -> list[PlanStep]:
    """Describe the algorithms that run at an event.

    Args:
        event: The event.
        plan: All algorithms, in their order.
    """
    here = nested(plan, event)
    return [
        PlanStep(
            event,
            algorithm.name,
            algorithm.stage.name.lower(),
            tuple(sorted(algorithm.reads)),
            tuple(sorted(algorithm.writes)),
            explain_position(event, here, i, plan),
        )
        for i, algorithm in enumerate(here)
    ]


def callback_step(event: Event, callback: Callback, why: str) -> PlanStep:
    """Describe a callback that runs at an event."""
    return PlanStep(event, callback.name, "watches", (), (), why)


def format_plan(
    steps: Sequence[PlanStep],
    caveats: Iterable[Caveat | Remark],
    omitted: str = "",
    *,
    width: int | None = None,
) -> str:
    """Format a plan as a table of its steps, followed by its callbacks and caveats.

    Args:
        steps: The rows of the table.
        caveats: The caveats and remarks.
        omitted: A line about what the table omits.
        width: The width of a line; of the terminal by default.
    """
    width = width or shutil.get_terminal_size().columns
    rows = [(*row[:3], *row[4:]) for row in _rows(steps)]  # with what they read it is too wide
    table = format_table(rows, (*_COLUMNS[:3], *_COLUMNS[4:]), width=width) if steps else ""
    notes = [omitted, *(f"{_label(caveat)}: {caveat}" for caveat in caveats)]
    wrapped = [textwrap.fill(note, width, break_on_hyphens=False) for note in notes if note]
    return "\n\n".join([*filter(None, [table]), *wrapped]) or _EMPTY


def plan_html(
    algorithms: Sequence[Algorithm], steps: Sequence[PlanStep], caveats: Iterable[Caveat | Remark]
) -> str:
    """Format a plan for notebooks: its algorithms, its caveats, and its steps on a click."""
    if not steps:
        return panel(_EMPTY)
    short = [(one.name, one.stage.name.lower(), repr(one)) for one in algorithms]
    warnings = [(_label(caveat).lower(), caveat) for caveat in caveats]
    return panel(
        f"Plan: {len(algorithms)} algorithms",
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


def as_data(
    algorithms: Iterable[Algorithm],
    callbacks: Iterable[Callback],
    caveats: Iterable[Caveat],
    steps: Iterable[PlanStep],
) -> dict[str, Any]:
    """Convert a plan to plain data: see `Plan.to_dict`."""
    return {
        "version": 1,
        "algorithms": {algorithm.name: _describe(algorithm) for algorithm in algorithms},
        "callbacks": [callback.name for callback in callbacks],
        "caveats": [{**attrs.asdict(one), "kind": one.kind.__name__} for one in caveats],
        "steps": [{**attrs.asdict(step), "event": step.event.value} for step in steps],
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
