"""Notes on errors: which component raised the error, and at which event."""

from typing import Any


def add_origin_note(error: BaseException, origin: Any, when: str) -> None:
    """Note on an error which component raised it, and when.

    Args:
        error: The error.
        origin: An algorithm, a callback, or a method of one.
        when: The event, or the name of the method.

    Example:
        >>> from composable import Callback
        >>> from composable._support.notes import add_origin_note
        >>> error = RuntimeError("no disk")
        >>> add_origin_note(error, Callback(), "BATCH_END")
        >>> error.__notes__
        ['raised by Callback at BATCH_END']
    """
    owner = getattr(getattr(origin, "func", origin), "__self__", origin)
    name = getattr(owner, "name", None) or type(owner).__name__
    add_note(error, f"raised by {name} at {when}")


def add_note(error: BaseException, note: str) -> None:
    """Add a line to the printed form of an error."""
    if hasattr(error, "add_note"):  # Python >= 3.11
        error.add_note(note)
    else:
        append_note(error, note)


def append_note(error: BaseException, note: str) -> None:
    """Emulate `add_note` on Python 3.10, whose tracebacks show no notes.

    The note is appended to the message if the message is the error's only argument. Other errors
    (a `KeyError`, an `OSError` with a number) keep their arguments, since code may read them.
    """
    error.__notes__ = [*getattr(error, "__notes__", []), note]  # type: ignore[attr-defined]
    plain = type(error).__str__ is BaseException.__str__
    if plain and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}",)
