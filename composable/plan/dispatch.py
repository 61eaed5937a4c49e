"""Dispatching of events to the algorithms and callbacks of a plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from typing_extensions import TypedDict

from composable._support.notes import add_origin_note
from composable.core.algorithm import Algorithm, called_at, check_returned
from composable.core.callback import Callback, FunctionCallback, hooks_of
from composable.core.control import Control
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Kind, is_count
from composable.plan.effects import CheckedAlgorithm, ReadOnlyHook
from composable.plan.plan import Plan

_EMPTY: Mapping[str, Any] = MappingProxyType({})

Acting: TypeAlias = Sequence[Callable[[Event, State], State]]
Listeners: TypeAlias = tuple[Acting, Callable[[State], State] | None]
"""The algorithms of an event, and what calls its callbacks."""

_NOBODY: Listeners = (), None
_ALL = sum(control.value for control in Control)


class RequestsState(TypedDict):
    """The bits of the pending requests."""

    pending: Annotated[
        int, Kind("requests of callbacks", lambda value: is_count(value) and value <= _ALL)
    ]


class Dispatcher:
    """Runs the algorithms and callbacks of a plan: `fire(event, state)`.

    `requests` joins the requests of callbacks that are not granted yet. `pending` says whether
    there are any, at a tenth of the cost of testing a `Control`. `user_events` are the events to
    which callbacks that are not Composable's listen.

    Args:
        plan: The plan to run.
        logger: The logger that is passed to callbacks.
        check_effects: Whether to raise an error if a callback changes the state, or an algorithm
            changes fields that it doesn't declare.

    Example:
        >>> from composable import Event, Logger, Plan, State
        >>> from composable.plan.dispatch import Dispatcher
        >>> def halve(event, state):
        ...     return state.evolve(batch=state.batch / 2)
        >>> dispatcher = Dispatcher(Plan.compile([halve]), Logger())
        >>> state = State(torch.nn.Linear(1, 1), batch=torch.ones(2))
        >>> dispatcher.fire(Event.BATCH_START, state).batch
        tensor([0.5000, 0.5000])
    """

    __slots__ = (
        "_table",
        "check_effects",
        "logger",
        "pending",
        "plan",
        "requests",
        "user_events",
    )

    def __init__(self, plan: Plan, logger: Logger, *, check_effects: bool = False) -> None:
        self.logger = logger
        self.check_effects = check_effects
        self.clear()
        self.set_plan(plan)

    def set_plan(self, plan: Plan) -> None:
        """Replace the plan."""
        self.plan = plan
        hooks = [self._hooks(callback) for callback in plan.callbacks]
        self.user_events = frozenset(
            event
            for callback, by_event in zip(plan.callbacks, hooks, strict=True)
            if _is_of_user(callback)
            for event in by_event
        )
        self._table: dict[Event, Listeners] = {}
        for event in Event:
            acting: Any = CheckedAlgorithm if self.check_effects else partial(called_at, event)
            algorithms = tuple(map(acting, plan.transforms(event)))
            observers = tuple(by_event[event] for by_event in hooks if event in by_event)
            observe = partial(self._observe, observers, event) if observers else None
            if algorithms or observe is not None:
                self._table[event] = (algorithms, observe)

    @contextmanager
    def checking_effects(self) -> Iterator[None]:
        """Check effects for the length of a block."""
        before = self.check_effects
        try:
            self.check_effects = True
            self.set_plan(self.plan)
            yield
        finally:
            self.check_effects = before
            self.set_plan(self.plan)

    def _hooks(self, callback: Callback) -> dict[Event, Callable[..., Any]]:
        hooks = hooks_of(callback)
        if not self.check_effects:
            return hooks
        return {event: ReadOnlyHook(hook, callback.name, event) for event, hook in hooks.items()}

    def listens(self, event: Event) -> bool:
        """Return whether any algorithm or callback listens to an event."""
        return event in self._table

    def firing(self, event: Event) -> Callable[[State], State] | None:
        """Return a function of the state that fires an event of this plan; None without effect."""
        algorithms, observe = self._table.get(event, _NOBODY)
        if not algorithms:
            return observe
        transform = partial(self._transform, algorithms, event)
        return transform if observe is None else lambda state: observe(transform(state))

    # --- events ---

    def fire(self, event: Event, state: State) -> State:
        """Run the algorithms and then the callbacks of an event, and return the new state."""
        algorithms, observe = self._table.get(event, _NOBODY)
        if algorithms:
            state = self._transform(algorithms, event, state)
        return state if observe is None else observe(state)

    def run_algorithms(
        self, event: Event, state: State, chosen: Callable[[Algorithm], bool] = lambda _: True
    ) -> State:
        """Run only the algorithms of an event, all or the chosen ones, and return the new state."""
        algorithms, _ = self._table.get(event, _NOBODY)
        pairs = zip(self.plan.transforms(event), algorithms, strict=True)
        return self._transform([one for each, one in pairs if chosen(each)], event, state)

    def run_callbacks(self, event: Event, state: State) -> None:
        """Run only the callbacks of an event."""
        _, observe = self._table.get(event, _NOBODY)
        if observe is not None:
            observe(state)

    def _transform(self, algorithms: Acting, event: Event, state: State) -> State:
        running: Any = None
        try:
            for running in algorithms:
                state = running(event, state)
                if type(state) is not State:
                    check_returned(state)
            if state.to_log:
                self.logger.log_metrics(state.to_log, state.timestamp)
                state = state.evolve_unchecked(to_log=_EMPTY)
        except Exception as error:
            add_origin_note(error, running, event.name)
            raise
        return state

    def _observe(
        self, observers: Sequence[Callable[..., Any]], event: Event, state: State
    ) -> State:
        logger = self.logger
        logger.timestamp = state.timestamp
        running: Any = None
        try:
            for running in observers:
                if (requested := running(state, logger)) is not None:
                    self._join(requested)
        except Exception as error:
            add_origin_note(error, running, event.name)
            raise
        return state

    # --- requests ---

    def _join(self, requested: object) -> None:
        if not isinstance(requested, Control):
            raise TypeError(
                f"a callback returned {requested!r} and must return None or a Control, such as "
                "Control.STOP."
            )
        self.request(requested)

    def request(self, request: Control) -> None:
        """Add a request to the pending ones."""
        self.requests |= request
        self.pending = bool(self.requests)

    def pop(self, request: Control) -> bool:
        """Remove a request from the pending ones, and return whether it was among them."""
        if not self.pending:
            return False
        requested = bool(self.requests & request)
        self.requests &= ~request
        self.pending = bool(self.requests)
        return requested

    def clear(self) -> None:
        """Drop all pending requests."""
        self.requests = Control.NONE
        self.pending = False

    def state_dict(self) -> RequestsState:
        """Return the pending requests."""
        return {"pending": self.requests.value}

    def load_state_dict(self, state: RequestsState) -> None:
        """Restore the pending requests."""
        self.clear()
        self.request(Control(state["pending"]))


def _is_of_user(callback: Callback) -> bool:
    if isinstance(callback, FunctionCallback):
        return True
    return not type(callback).__module__.startswith("composable.")
