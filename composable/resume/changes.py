"""Compare values and descriptions of a run: with those that were saved, or of another process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from composable._support.printable import printable, shorten
from composable._support.warn import warn_user
from composable.checkpoint.errors import CheckpointError, MismatchError
from composable.checkpoint.filters import covers

_COMPARED = (
    *("algorithms", "requested_duration", "epoch_length", "model", "modules", "loss_fn", "data"),
    *("evaluators", "updates", "options", "schedulers", "device", "num_threads", "torch"),
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


def check_updates(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that a run has the updates of the saved run, in the same order.

    Args:
        path: The checkpoint from which the run is resumed.
        saved: The description of the saved run.
        own: The description of the request of this run.

    Raises:
        MismatchError: It has others.
    """
    before, now = (list(one.get("updates") or ()) for one in (saved, own))
    if before != now:
        raise MismatchError(
            f"{path} has the updates {before}, and this run has {now}: give each Update the name "
            "and the place that it had, or continue from the weights alone by "
            "load_weights_only=True."
        )


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
            f"differ from an uninterrupted run's:{_lines(changed)}",
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
            "load_ignore_keys=['optimizers/*/param_groups'] for the optimizers', or "
            "['rates'] to restart torch schedulers.",
            ChangedRunWarning,
        )


def _lines(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return "".join(f"\n  {printable(text)}" for text in [*texts[:_MOST_SHOWN], *more])


def _text(value: Any) -> str:
    return shorten(value, 200) if isinstance(value, int) else str(value)[:200]


# --- values ---


@contextmanager
def entry(where: str) -> Iterator[None]:
    """Name the entry of a checkpoint that the block loads in its errors.

    Raises:
        MismatchError: The block raised an error other than a `CheckpointError`.
    """
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{where}/{error}") from error.__cause__
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # classes of users may raise anything
        raise MismatchError(
            f"{where} cannot be restored: {type(error).__name__}: {error} Build the Trainer as in "
            "the saved run; load_ignore_keys= skips an entry, by its path after 'state/'."
        ) from error


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


def check_same_entries(own: Any, saved: Mapping[str, Any], where: str) -> None:
    """Check that a state has the entries of the state of an object, and lists of their lengths.

    Raises:
        MismatchError: It has not.
    """
    ours = own.state_dict()
    lists = {name for name in ours.keys() & saved.keys() if isinstance(ours[name], list)}
    longer = {name for name in lists if len(ours[name]) not in (0, len(saved[name]))}
    if differing := sorted(map(str, (ours.keys() ^ saved.keys()) | longer)):
        raise MismatchError(
            f"{where} and this run's {type(own).__name__} differ in the entries {differing[:5]}. "
            "Build the Trainer as in the saved run."
        )
