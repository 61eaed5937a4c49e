"""What is added to an error on its way: who raised it, and when."""

from typing import Any

__all__ = ["add_note", "add_origin_note"]


def add_origin_note(error: BaseException, who: Any, when: str) -> None:
    """Note on an error who raised it (an algorithm, a callback or a method of one) and when.

    Example:
        >>> from composable import Callback
        >>> from composable.core._notes import add_origin_note
        >>> error = RuntimeError("no disk")
        >>> add_origin_note(error, Callback(), "BATCH_END")
        >>> error.__notes__
        ['raised by Callback at BATCH_END']
    """
    owner = getattr(getattr(who, "func", who), "__self__", who)
    name = getattr(owner, "name", None) or type(owner).__name__
    add_note(error, f"raised by {name} at {when}")


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what is printed of an error."""
    if hasattr(error, "add_note"):  # Python 3.11 on
        error.add_note(note)
    else:
        append_note(error, note)


def append_note(error: BaseException, note: str) -> None:
    """Do what `add_note` does, where there is none: tracebacks of Python 3.10 show no notes.

    So the note is added to the message, where the message is all that the error holds. An error
    of another make (a `KeyError`, an `OSError` with a number) keeps its arguments, for there is
    code that reads them.
    """
    error.__notes__ = [*getattr(error, "__notes__", []), note]  # type: ignore[attr-defined]
    plain = type(error).__str__ is BaseException.__str__
    if plain and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}",)
