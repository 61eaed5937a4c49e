"""Warnings about chosen settings at the edge of their grid."""

from typing import Any

from composable.comparison.records import Protocol

__all__ = ["edge_notes"]


def edge_notes(protocol: Protocol, arm: str) -> list[str]:
    """Return a warning for each chosen number that is the lowest or highest of its grid."""
    notes = []
    for name, values in protocol.grids.get(arm, {}).items():
        chosen = protocol.chosen.get(arm, {}).get(name)
        numbers = sorted({value for value in values if _is_number(value)})
        if len(numbers) < max(2, len(set(map(repr, values)))) or chosen not in numbers:
            continue
        if chosen in (numbers[0], numbers[-1]):
            end, beyond = ("lowest", "lower") if chosen == numbers[0] else ("highest", "higher")
            notes.append(
                f"{name}={chosen!r} is the {end} value that was tried: a {beyond} one may be better"
            )
    return notes


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
