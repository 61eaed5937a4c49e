"""Compare saved values with those of the run that was built."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from composable.checkpoint.errors import MismatchError
from composable.core.structure import short

__all__ = ["alike", "check_alike", "check_as_many", "expect"]


def expect(fits: bool, where: str, value: Any, kind: str) -> None:
    """Raise a `MismatchError` unless a value at a path fits."""
    if not fits:
        raise MismatchError(f"{where} is {_text(value)}, and must be {kind}.")


def _text(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, (list, tuple)) else short(value)


def check_as_many(what: str, own: Sequence[Any], saved: Sequence[Any], where: str) -> None:
    """Check that there are as many as were saved.

    Raises:
        MismatchError: There are not.
    """
    if len(own) != len(saved):
        raise MismatchError(
            f"{where} was saved from another run: it has {len(saved)} {what}, and this run has "
            f"{len(own)}. Build the Trainer as in the saved run."
        )


def check_alike(what: str, own: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Check that the entries of a state are those of this run, with the same types.

    Raises:
        MismatchError: They are not.
    """
    if differing := sorted(map(str, own.keys() ^ saved.keys())):
        raise MismatchError(
            f"{where} and this run's {what} differ in the entries {differing[:5]}. Build the "
            "Trainer as in the saved run."
        )
    for name, value in own.items():
        expect(alike(value, saved[name]), f"{where}/{name}", saved[name], f"like {_text(value)}")


def alike(own: Any, saved: Any) -> bool:
    """Return whether a saved value has the type of one's own, inside of containers too."""
    if own is None or saved is None:
        other = saved if own is None else own
        return other is None or _is_number(other) or isinstance(other, (bool, str))
    if isinstance(own, Mapping):
        return isinstance(saved, Mapping) and all(
            alike(own[key], saved[key]) for key in own.keys() & saved.keys()
        )
    if isinstance(own, (list, tuple)):
        fits = type(own) is type(saved) and len(own) in (0, len(saved))
        return fits and all(map(alike, own, saved))
    if isinstance(own, bool) or isinstance(saved, bool):
        return type(own) is type(saved)
    if isinstance(own, Tensor) and own.ndim:
        return isinstance(saved, Tensor) and own.shape == saved.shape
    return (_is_number(own) and _is_number(saved)) or type(own) is type(saved)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
