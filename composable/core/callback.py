"""What watches training."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from composable.core._notes import add_origin_note
from composable.core.control import Control
from composable.core.event import Event

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = [
    "Callback",
    "FunctionCallback",
    "callback_id",
    "check_keys",
    "closing",
    "entered_callbacks",
    "hooks_of",
]

Self = TypeVar("Self", bound="Callback")

# Of the context, not of the process: what one thread enters is no business of another.
_entered: ContextVar[tuple["Callback", ...]] = ContextVar("entered_callbacks", default=())


class Callback:
    """An observer of training: it reads, logs and asks, and changes nothing.

    A subclass defines a method for each event that it watches, named like the event in lower
    case, with `(state, logger)`; or `run_event(event, state, logger)` for all events, which
    switches the single methods off. A method returns None or a `Control`. An attribute that is
    named like an event and can't be called is left alone.

    What it must remember for a run that goes on later, it returns from `state_dict` and takes back
    in `load_state_dict`.

    `with callback:` lets it watch every Trainer that is called inside the block: see
    `register_global_callback`.

    Example:
        >>> from composable import Callback, Control
        >>> class EpochMonitor(Callback):
        ...     def epoch_start(self, state, logger):
        ...         print(f"Epoch: {state.timestamp.epoch}")
        >>> class StopEarly(Callback):
        ...     def batch_end(self, state, logger):
        ...         return Control.STOP if state.timestamp.batch == 3 else None
        >>> class LowestLoss(Callback):
        ...     lowest = float("inf")
        ...
        ...     def eval_after_all(self, state, logger):
        ...         self.lowest = min(self.lowest, state.metrics["eval"]["loss"])
        ...
        ...     def state_dict(self):
        ...         return {"lowest": self.lowest}
        ...
        ...     def load_state_dict(self, state):
        ...         self.lowest = state["lowest"]
    """

    @property
    def name(self) -> str:
        """What it is called in the plan and in errors."""
        return type(self).__name__

    def run_event(self, event: Event, state: "State", logger: "Logger") -> Control | None:
        """Watch every event; by default the method named like the event is called."""
        hook = _hook(self, event)
        return hook(state, logger) if hook else None

    def close(self) -> None:
        """Let go of files and screens: called when `fit`, `eval` or `predict` ends, however."""

    def state_dict(self) -> dict[str, Any]:
        """What it must remember for a run that goes on later: plain containers and tensors.

        It is saved with the state of the run. A callback that remembers nothing has none to give.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned.

        Raises:
            ValueError: `state` has something that this callback doesn't remember.
        """
        if state:
            raise ValueError(
                f"{self.name} was given the state {sorted(state)}, and remembers nothing: was it "
                "saved by another callback? A class that defines state_dict defines "
                "load_state_dict too."
            )

    def __enter__(self: Self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        # No token of the variable is kept: blocks may end in another order than that in which
        # they were nested (generators), and each must take out its own.
        left = list(_entered.get())
        for i in reversed(range(len(left))):
            if left[i] is self:
                del left[i]
                break
        _entered.set(tuple(left))


class FunctionCallback(Callback):
    """A plain function `(event, state, logger) -> Control | None` as a callback."""

    def __init__(self, function: Callable[[Event, "State", "Logger"], Control | None]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def run_event(self, event: Event, state: "State", logger: "Logger") -> Control | None:
        """Call the function."""
        return self.function(event, state, logger)


def check_keys(callback: Callback, state: Mapping[str, Any]) -> None:
    """Refuse a state whose names are not those that a callback's own state has.

    Raises:
        ValueError: `state` has other names.
    """
    own = callback.state_dict().keys()
    if state.keys() != own:
        raise ValueError(
            f"{callback.name} was given the state {sorted(state)}, and its own has {sorted(own)}: "
            "was it saved by another callback?"
        )


def hooks_of(callback: Callback) -> dict[Event, Callable[..., Any]]:
    """The `(state, logger)` functions of a callback, by the events that it watches.

    Raises:
        TypeError: It has functions of two names of one event.
    """
    if type(callback).run_event is not Callback.run_event:
        return {event: partial(callback.run_event, event) for event in Event}
    hooks = {event: _hook(callback, event) for event in Event}
    return {event: hook for event, hook in hooks.items() if hook is not None}


_NAMES = {  # older names of events included
    event: [name.lower() for name, same in Event.__members__.items() if same is event]
    for event in Event
}


def _hook(callback: Callback, event: Event) -> Callable[..., Any] | None:
    """The function that is named like an event; data of that name is the callback's own."""
    found = {name: getattr(callback, name, None) for name in _NAMES[event]}
    hooks = {name: hook for name, hook in found.items() if callable(hook)}
    first = next(iter(hooks.values()), None)
    if any(hook != first for hook in hooks.values()):
        raise TypeError(
            f"{callback.name} defines {' and '.join(hooks)}, which are names of one event: "
            f"make {event.value} of them."
        )
    return first


def callback_id(callback: Callback) -> int:
    """What tells callbacks apart: a function is one, however often it is wrapped."""
    return id(callback.function if isinstance(callback, FunctionCallback) else callback)


def entered_callbacks() -> tuple[Callback, ...]:
    """The callbacks in whose `with` blocks this code runs, the outermost first."""
    return _entered.get()


@contextmanager
def closing(callbacks: Iterable[Callback], *, at_the_end: bool = True) -> Iterator[None]:
    """Close every callback once, whatever happens, and keep the first error.

    Args:
        callbacks: Whom to close.
        at_the_end: Close them at an ordinary end too, and not after an error only.

    Example:
        >>> from composable.core.callback import Callback, closing
        >>> class Door(Callback):
        ...     def close(self):
        ...         print("closed")
        >>> with closing([Door()]):
        ...     print("open")
        open
        closed
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:
        first = error
    if first is not None or at_the_end:
        for callback in callbacks:
            first = _close(callback, first)
    if first is not None:
        raise first


def _close(callback: Callback, first: BaseException | None) -> BaseException | None:
    try:
        callback.close()
    except BaseException as error:  # an interrupt must not keep the others from being closed
        add_origin_note(error, callback, "close")
        if first is None:
            return error
        warnings.warn(f"{callback.name} could not be closed: {error}", stacklevel=4)
    return first
