"""Compare values and descriptions of a run: with those that were saved, or of another process."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from composable._support.printable import printable, shorten
from composable._support.warn import warn_user
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.filters import covers
from composable.core.stateful import short

__all__ = [
    "ChangedRunWarning",
    "alike",
    "check_alike",
    "check_as_many",
    "differing_entries",
    "expect",
    "saved_hyperparameters",
    "warn_of_changes",
]

_COMPARED = (
    *("algorithms", "requested_duration", "epoch_length", "model", "modules", "loss_fn", "data"),
    *("evaluators", "options", "schedulers", "device", "num_threads", "torch"),
)
_MOST_SHOWN = 20


class ChangedRunWarning(UserWarning):
    """A resumed run differs from the saved one in its options, its environment, or its data."""


def differing_entries(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and the two values of each difference between two descriptions."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in {**before, **now}:
            inner = f"{path}/{name}" if path else str(name)
            yield from differing_entries(before.get(name), now.get(name), inner)
    elif before != now:
        yield path, before, now


def saved_hyperparameters(
    saved: Mapping[str, Any], requested: Mapping[str, Any], ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the hyperparameters that a run has after the resume: the saved ones.

    Args:
        saved: The description of the saved run.
        requested: The hyperparameters of the run that was built, by path in the state.
        ignored: Patterns of entries that are not loaded, and stay as requested.
    """
    found = saved.get("hyperparameters")
    found = found if isinstance(found, dict) else {}
    return {
        path: own if covers(path, ignored) else found.get(path, own)
        for path, own in requested.items()
    }


def warn_of_changes(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    """Warn if a run differs from the saved one, and of requests that have no effect.

    Args:
        path: The checkpoint from which the run was resumed.
        before: The description of the saved run.
        now: The description of the run after the resume.
        requested: The hyperparameters that were requested.
    """
    changed = [
        f"{what}: {_text(saved)} -> {_text(own)}"
        for key in _COMPARED
        for what, saved, own in differing_entries(before.get(key), now.get(key), key)
    ]
    if changed:
        warn_user(
            f"the run resumed from {path} differs from the saved one, so its results may "
            f"differ from those of an uninterrupted run:{_lines(changed)}",
            ChangedRunWarning,
        )
    unused = [
        f"{what}: {_text(saved)}, not the requested {_text(own)}"
        for what, saved, own in differing_entries(now["hyperparameters"], requested)
    ]
    if unused:
        warn_user(
            f"the run resumed from {path} continues with the hyperparameters of the "
            f"checkpoint:{_lines(unused)}\nTo use the requested ones, pass "
            "load_ignore_keys=['optimizers/*/param_groups'] for those of optimizers, or "
            "['rates'] to restart torch schedulers.",
            ChangedRunWarning,
        )


def _lines(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return "".join(f"\n  {printable(text)}" for text in [*texts[:_MOST_SHOWN], *more])


def _text(value: Any) -> str:
    return shorten(value, 200) if isinstance(value, int) else str(value)[:200]


# --- values ---


def expect(fits: bool, where: str, value: Any, kind: str) -> None:
    """Raise a `MismatchError` unless a value at a path fits."""
    if not fits:
        raise MismatchError(f"{where} is {_in_words(value)}, and must be {kind}.")


def _in_words(value: Any) -> str:
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
        expect(
            alike(value, saved[name]), f"{where}/{name}", saved[name], f"like {_in_words(value)}"
        )


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
