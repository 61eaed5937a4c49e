"""The names of a callback's methods: events, and the hooks of other libraries, which never run."""

import difflib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from composable._other_trainers import HOOKS
from composable._support.warn import warn_user
from composable.core.callback import Callback
from composable.core.destination import LoggerDestination
from composable.core.event import Event

_EVENTS = [event.value for event in Event]
_KNOWN = {*dir(LoggerDestination), *_EVENTS}
_SIMILAR = 0.8
_BEGINNINGS = ("on_", "before_", "after_")
_ENDS = ("_start", "_begin", "_end")
_HELPER = "begin the name of a helper with '_'"

_PLAIN_WORDS = {"setup", "teardown"}
"""Hooks whose names helpers have too: they are hooks if they take a trainer."""

_OTHER_WORDS = {"post_close"}
"""Hooks whose names are not shaped like the names of events."""

_PACKAGES = {"transformers", "lightning", "pytorch_lightning", "composer", "cerebras", "keras"}


def check_hooks(callback: Callback) -> None:
    """Check that no method of a callback is meant for an event and would never run.

    The names `on_*`, `before_*`, `after_*`, `*_start`, `*_begin` and `*_end` are for events: a
    helper of a callback that is named so begins with an underscore.

    Raises:
        TypeError: A method has the name of a hook of another library, one of the names above, or
            one that resembles the name of an event and takes a state and a logger.
    """
    kind = type(callback)
    if kind.run_event is not Callback.run_event:
        return
    for name, method in _methods(kind):
        called = f"{kind.__name__}.{name} is never called, since there is no event of that name"
        if hint := _foreign_hint(name, method) or _event_hint(kind, name, method):
            raise TypeError(f"{called}; {hint}.")
        if _parameters(method)[:2] == ["state", "logger"]:
            warn_user(f"{called}. See Event for the names, or {_HELPER}.", UserWarning)


def _methods(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """Iterate over the public methods that a class has besides `Callback`'s."""
    theirs = {
        name
        for base in kind.__mro__
        if base.__module__.partition(".")[0] in _PACKAGES
        for name in vars(base)
    }
    for name in sorted(set(dir(kind)) - _KNOWN - theirs):
        method = getattr(kind, name)
        if not name.startswith("_") and isinstance(method, FunctionType):
            yield name, method


def _event_hint(kind: type, name: str, method: Callable[..., Any]) -> str | None:
    """Return which method is meant by one that is named like an event, or None if it is not."""
    own = name.removeprefix("on_")
    if same := Event.__members__.get(own.upper()):  # an alternative name
        return f"define {_call((same.value,))}"
    shaped = _is_shaped(name) and issubclass(_owner(kind, name), Callback | LoggerDestination)
    similar = difflib.get_close_matches(own, _EVENTS, 1, _SIMILAR)
    if similar and (shaped or _takes_two(method)):
        return f"define {_call((similar[0],))}"
    if not shaped:
        return None
    nearest = difflib.get_close_matches(own, _EVENTS, 1, 0)[0]
    return (
        _foreign_hint(f"on_{own}", method)
        or f"define {_call((nearest,))}, the event of the nearest name, or {_HELPER}"
    )


def _is_shaped(name: str) -> bool:
    return name.startswith(_BEGINNINGS) or name.endswith(_ENDS)


def _owner(kind: type, name: str) -> type:
    """Return the class that defines a method: not a mixin's methods, which others may call."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _foreign_hint(name: str, method: Callable[..., Any]) -> str | None:
    """Return what to do about a hook of another library, or None if `name` is not one."""
    takes_trainer = name in _PLAIN_WORDS and _parameters(method)[:1] == ["trainer"]
    if not (takes_trainer or name in _OTHER_WORDS or _is_shaped(name)):
        return None  # without reading the advice
    found = {library: hooks[name] for library, hooks in HOOKS.items() if name in hooks}
    if not found:
        return None
    owners = " and ".join(found)
    if not any(found.values()):
        return f"{name} is a hook of {owners} without a counterpart here"
    if len(set(found.values())) == 1:
        return f"{name} is a hook of {owners}: define {_call(next(iter(found.values())))}"
    calls = (f"{_call(ours)} for the hook of {library}" for library, ours in found.items())
    return f"{name} is a hook of {owners}: define {', or '.join(calls)}"


def _call(ours: tuple[str, ...]) -> str:
    arguments = {"close": "(self)"}
    return " and ".join(f"{our}{arguments.get(our, '(self, state, logger)')}" for our in ours)


def _parameters(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)[1:]


def _takes_two(method: Callable[..., Any]) -> bool:
    """Return whether a method can be called with a state and a logger."""
    try:
        inspect.signature(method).bind("self", "state", "logger")
    except TypeError:
        return False
    return True
