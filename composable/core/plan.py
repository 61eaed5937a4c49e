"""Who acts when: algorithms and callbacks compiled into one table."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from composable.core._notes import say_where
from composable.core.algorithm import (
    Algorithm,
    FunctionAlgorithm,
    check_returned,
    leaves,
    nested,
)
from composable.core.callback import Callback, FunctionCallback, hooks_of, watcher_id
from composable.core.control import Control
from composable.core.event import Event
from composable.core.logger import Logger, LoggerDestination
from composable.core.observing import Guarded, Held
from composable.core.state import State

__all__ = ["AmbiguousOrderWarning", "Dispatcher", "IdleAlgorithmWarning", "Plan"]


Listeners: TypeAlias = tuple[Sequence[Algorithm], Sequence[Callable[..., Any]]]


class AmbiguousOrderWarning(UserWarning):
    """Two algorithms write the same field in the same stage, so only their names order them."""


class IdleAlgorithmWarning(UserWarning):
    """An algorithm can never act: its window is empty, or its events lie outside of it."""


@attrs.frozen
class Step:
    """One line of a plan: who acts at an event, on what, and why in this place."""

    event: Event
    who: str
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    why: str


@attrs.frozen
class Plan:
    """Who runs at which event, in an order that doesn't depend on how they were listed.

    Algorithms are a set: they are ordered by stage, then by what they declare in `before` and
    `after`, and then by name. At an event that closes a
    pair (`AFTER_X`, `X_END`), those that listen to both of the pair run in reverse, so that
    pairs nest like brackets, after those that listen to the closing event alone.

    Callbacks only look and ask. They run after the algorithms: the library's own (`core`), then
    the user's (`given`), then global ones (`visitors`), each in the order of their list. Loggers
    come after all callbacks, in the same order, since they must see what was logged.

    Example:
        >>> from composable import Plan
        >>> from composable.algorithms import LabelSmoothing, MixUp
        >>> plan = Plan.compile([LabelSmoothing(0.1), MixUp()])
        >>> plan == Plan.compile([MixUp(), LabelSmoothing(0.1)])
        True
        >>> for step in plan.steps():
        ...     print(step.event.value, step.who, step.why, sep=" | ")
        before_train_batch | MixUp | alone here
        before_loss | MixUp | first of the stages here
        before_loss | LabelSmoothing | targets comes after mix
    """

    algorithms: tuple[Algorithm, ...] = ()
    core: tuple[Callback, ...] = ()
    given: tuple[Callback, ...] = ()
    visitors: tuple[Callback, ...] = ()

    @classmethod
    def compile(
        cls,
        algorithms: Iterable[Algorithm | Callable[[Event, State], State]] = (),
        callbacks: Iterable[Callback | Callable[..., Control | None]] = (),
        loggers: Iterable[LoggerDestination] = (),
        *,
        core: Iterable[Callback] = (),
    ) -> "Plan":
        """Order algorithms and callbacks.

        Args:
            algorithms: A set of algorithms, or functions `(event, state) -> state`.
            callbacks: Callbacks, or functions `(event, state, logger) -> Control | None`.
            loggers: Where metrics go.
            core: Callbacks and loggers that belong to whoever compiles, and come first.

        Raises:
            TypeError: One of them is of the wrong kind.
            ValueError: Two algorithms have one name, or a callback is given twice.
        """
        chosen = _in_order([as_algorithm(algorithm) for algorithm in as_list(algorithms)])
        _check_names(chosen)
        _report_idle(chosen)
        _report_conflicts(chosen)
        watchers = [as_callback(callback) for callback in as_list(callbacks)]
        places = [as_destination(logger) for logger in as_list(loggers)]
        plan = cls(tuple(chosen), core=tuple(core))
        for watcher in (*watchers, *places):
            plan = plan.with_callback(watcher)
        return plan

    def with_callback(self, callback: Callback) -> "Plan":
        """This plan with one more callback or logger of the user's.

        Raises:
            ValueError: The plan has it already.
        """
        if watcher_id(callback) in map(watcher_id, (*self.core, *self.given)):
            raise ValueError(
                f"the callback {callback.name} was given twice, the same instance: it watches "
                "already. Drop one of them, or make another instance."
            )
        return attrs.evolve(self, given=(*self.given, callback))

    def visited_by(self, visitors: Iterable[Callback]) -> "Plan":
        """This plan with these global callbacks, but for those that it has anyway."""
        present = set(map(watcher_id, (*self.core, *self.given)))
        new = tuple(one for one in visitors if watcher_id(one) not in present)
        return attrs.evolve(self, visitors=new) if new or self.visitors else self

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks and loggers, in the order in which they run."""
        everyone = (*self.core, *self.given, *self.visitors)
        return tuple(sorted(everyone, key=lambda one: isinstance(one, LoggerDestination)))

    @property
    def destinations(self) -> tuple[LoggerDestination, ...]:
        """The callbacks that are loggers."""
        return tuple(c for c in self.callbacks if isinstance(c, LoggerDestination))

    def transforms(self, event: Event) -> tuple[Algorithm, ...]:
        """The algorithms that listen to an event, in the order in which they run."""
        return nested(self.algorithms, event)

    def observers(self, event: Event) -> tuple[Callback, ...]:
        """The callbacks that listen to an event, in the order in which they run."""
        return tuple(callback for callback in self.callbacks if event in hooks_of(callback))

    def steps(self) -> list[Step]:
        """Every line of the plan, in the order of the events."""
        steps = []
        for event in Event:
            transforms = self.transforms(event)
            for i, algorithm in enumerate(transforms):
                steps.append(
                    Step(
                        event,
                        algorithm.name,
                        algorithm.stage.name.lower(),
                        tuple(sorted(algorithm.reads)),
                        tuple(sorted(algorithm.writes)),
                        _why(event, transforms, i),
                    )
                )
            steps += [
                Step(event, callback.name, "watches", (), (), self._why_watching(callback))
                for callback in self.observers(event)
            ]
        return steps

    def _why_watching(self, callback: Callback) -> str:
        if isinstance(callback, LoggerDestination):
            return "writes what was logged, after all callbacks"
        if watcher_id(callback) in map(watcher_id, self.core):
            return "observes and asks, the library's own first"
        if watcher_id(callback) in map(watcher_id, self.visitors):
            return "observes and asks, global ones after yours"
        return "observes and asks, in list order"

    def explain(self) -> str:
        """The plan as a table: event, who, stage, reads, writes, why here."""
        rows = [("event", "who", "stage", "reads", "writes", "why here")]
        for step in self.steps():
            fields = (", ".join(step.reads) or "-", ", ".join(step.writes) or "-")
            rows.append((step.event.value, step.who, step.stage, *fields, step.why))
        if len(rows) == 1:
            return "Nothing is registered: the loop runs alone."
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for tools."""
        steps = [{**attrs.asdict(step), "event": step.event.value} for step in self.steps()]
        return {
            "algorithms": {algorithm.name: repr(algorithm) for algorithm in self.algorithms},
            "callbacks": [callback.name for callback in self.callbacks],
            "steps": steps,
        }

    def dispatcher(self, logger: Logger, *, check_effects: bool = False) -> "Dispatcher":
        """The plan made ready to run.

        Args:
            logger: What callbacks log to.
            check_effects: Refuse callbacks that change what they see, and algorithms that change
                what they don't declare.
        """
        return Dispatcher(self, logger, check_effects=check_effects)


class Dispatcher:
    """Runs a plan: `fire(event, state)`.

    `requests` joins what the callbacks have asked for and nobody has granted yet; `pending` says
    whether there is any such request, at a tenth of the price of asking a `Control`.
    """

    __slots__ = ("_table", "check_effects", "logger", "pending", "plan", "requests")

    def __init__(self, plan: Plan, logger: Logger, *, check_effects: bool = False) -> None:
        self.logger = logger
        self.check_effects = check_effects
        self.forget()
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """Run this plan from here on."""
        self.plan = plan
        hooks = [self._hooks(callback) for callback in plan.callbacks]
        self._table: dict[Event, Listeners] = {}
        for event in Event:
            transforms: Sequence[Any] = plan.transforms(event)
            if self.check_effects:
                transforms = [Held(algorithm) for algorithm in transforms]
            watching = tuple(of_one[event] for of_one in hooks if event in of_one)
            if transforms or watching:
                self._table[event] = (transforms, watching)

    def _hooks(self, callback: Callback) -> dict[Event, Callable[..., Any]]:
        hooks = hooks_of(callback)
        if not self.check_effects:
            return hooks
        return {event: Guarded(hook, callback.name, event) for event, hook in hooks.items()}

    def fire(self, event: Event, state: State) -> State:
        """The state after everyone who listens to the event has run."""
        listeners = self._table.get(event)
        return state if listeners is None else self._run(listeners, event, state)

    def _run(self, listeners: Listeners, event: Event, state: State) -> State:
        transforms, watching = listeners
        at_work: Any = None
        try:
            for at_work in transforms:
                state = check_returned(at_work(event, state))
            logger = self.logger
            logger.timestamp = state.timestamp
            for at_work in watching:
                asked = at_work(state, logger)
                if asked is not None:
                    self._join(asked)
        except Exception as error:
            say_where(error, at_work, event.name)
            raise
        return state

    def act(self, event: Event, state: State) -> State:
        """The state after the algorithms have acted, and nobody else."""
        transforms, _ = self._table.get(event, ((), ()))
        return self._run((transforms, ()), event, state)

    def announce(self, event: Event, state: State) -> None:
        """Let those who watch hear of an event that the algorithms have acted at already."""
        _, watching = self._table.get(event, ((), ()))
        self._run(((), watching), event, state)

    def _join(self, asked: object) -> None:
        if not isinstance(asked, Control):
            raise TypeError(
                f"a callback returned {asked!r} and must return None or a Control, such as "
                "Control.STOP."
            )
        self.ask(asked)

    def ask(self, request: Control) -> None:
        """Ask for something on top of what was asked for."""
        self.requests |= request
        self.pending = bool(self.requests)

    def listens(self, event: Event) -> bool:
        """Whether anyone listens to an event."""
        return event in self._table

    def forget(self) -> None:
        """Drop what was asked for."""
        self.requests = Control.NONE
        self.pending = False

    def take(self, request: Control) -> bool:
        """Whether something was asked for; it counts as granted from here on."""
        if not self.pending:
            return False
        asked = bool(self.requests & request)
        self.requests &= ~request
        self.pending = bool(self.requests)
        return asked


def as_algorithm(algorithm: object) -> Algorithm:
    """An algorithm as it is, a plain function wrapped."""
    if isinstance(algorithm, Algorithm):
        _check_declarations(algorithm)
        return algorithm
    if isinstance(algorithm, type):
        raise TypeError(
            f"algorithms has the class {algorithm.__name__}, where an instance is meant: write "
            f"{algorithm.__name__}()."
        )
    if isinstance(algorithm, Callback):
        raise TypeError(
            f"algorithms has {algorithm.name}, which is a callback: pass it in "
            f"{'loggers' if isinstance(algorithm, LoggerDestination) else 'callbacks'}=[...]."
        )
    if callable(algorithm):
        return FunctionAlgorithm(algorithm)
    raise TypeError(
        f"algorithms has {algorithm!r}: each must be an Algorithm, such as MixUp(), or a function "
        "(event, state) -> state."
    )


def _check_declarations(algorithm: Algorithm) -> None:
    """What an algorithm declares are events, and fields of the state."""
    fields = {field.name for field in attrs.fields(State)}
    known: dict[str, set[Any]] = {"events": set(Event), "reads": fields, "writes": fields}
    for declared, allowed in known.items():
        given = getattr(algorithm, declared)
        strange = {given} if isinstance(given, str) else set(given) - allowed
        if strange:
            ways = ", ".join(sorted(fields))
            what = "members of Event" if declared == "events" else f"fields of State: {ways}"
            raise TypeError(
                f"{type(algorithm).__name__}.{declared} has {strange} and must be a set of {what}."
            )


def as_callback(callback: object, place: str = "callbacks has") -> Callback:
    """A callback as it is, a plain function wrapped. An error begins with its place."""
    if isinstance(callback, LoggerDestination):
        raise TypeError(f"{place} {callback.name}, a logger: pass it in loggers=[...].")
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type):
        raise TypeError(
            f"{place} the class {callback.__name__}, where an instance is meant: write "
            f"{callback.__name__}()."
        )
    if isinstance(callback, Algorithm):
        raise TypeError(
            f"{place} {callback!r}, which is an algorithm: pass it in algorithms=[...]."
        )
    if callable(callback):
        return FunctionCallback(callback)
    raise TypeError(
        f"{place} {callback!r}: each must be a Callback or a function "
        "(event, state, logger) -> Control | None."
    )


def as_destination(logger: object) -> LoggerDestination:
    """A logger as it is."""
    if isinstance(logger, LoggerDestination):
        return logger
    hint = f": write {logger.__name__}()" if isinstance(logger, type) else ""
    raise TypeError(f"loggers has {logger!r}: each must be an instance of LoggerDestination{hint}.")


def as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        return list(given)
    return [given]


def _in_order(algorithms: Sequence[Algorithm]) -> list[Algorithm]:
    """By stage, then by what they declare to come before or after, then by name."""
    waiting = sorted(algorithms, key=lambda algorithm: (algorithm.stage, algorithm.name))
    order: list[Algorithm] = []
    while waiting:
        free = (a for a in waiting if not any(_precedes(b, a) for b in waiting if b is not a))
        first = next(free, None)
        if first is None:
            raise ValueError(
                f"algorithms {[a.name for a in waiting]} can't be ordered: what they declare in "
                "before and after goes in a circle. Drop one of the declarations."
            )
        order.append(first)
        waiting.remove(first)
    for i, later in enumerate(order):
        for earlier in order[:i]:
            if _declares(later, earlier):
                raise ValueError(
                    f"{later.name} must come before {earlier.name}, as one of them declares, and "
                    f"its stage {later.stage.name} comes after {earlier.stage.name}. Change a "
                    f"stage, or say the order with chain({later.name}, {earlier.name})."
                )
    return order


def _precedes(first: Algorithm, second: Algorithm) -> bool:
    if first.stage != second.stage:
        return first.stage < second.stage
    return _declares(first, second)


def _declares(first: Algorithm, second: Algorithm) -> bool:
    """Whether one of two algorithms declares that the first comes before the second."""
    return any(
        _is_among(b, a.before) or _is_among(a, b.after)
        for a in leaves(first)
        for b in leaves(second)
    )


def _is_among(algorithm: Algorithm, classes: Iterable[type | str]) -> bool:
    return any(
        kind.__name__ == one if isinstance(one, str) else kind is one
        for kind in type(algorithm).__mro__
        for one in classes
    )


def _check_names(algorithms: Sequence[Algorithm]) -> None:
    seen: dict[str, tuple[Algorithm, Algorithm]] = {}
    for algorithm in algorithms:
        for leaf in leaves(algorithm):
            other, where = seen.setdefault(leaf.name, (leaf, algorithm))
            if where is algorithm and other == leaf:  # one algorithm in two windows, say
                continue
            raise ValueError(
                f"algorithms has two named {leaf.name!r}: {other!r} and {leaf!r}. Names tell their "
                "memory and random numbers apart: give one another, such as "
                f"{type(leaf).__name__}(..., name='{leaf.name}2')."
            )


def _report_idle(algorithms: Sequence[Algorithm]) -> None:
    for algorithm in algorithms:
        if why := algorithm.why_idle():
            warnings.warn(
                f"{algorithm.name} can never act: {why}. Drop it, or change that.",
                IdleAlgorithmWarning,
                stacklevel=3,
            )


def _report_conflicts(algorithms: Sequence[Algorithm]) -> None:
    for i, first in enumerate(algorithms):
        for second in algorithms[i + 1 :]:
            shared = (set(first.writes) & set(second.writes)) - {"memory"}
            events = set(first.events) & set(second.events)
            declared = _declares(first, second)
            if shared and events and first.stage == second.stage and not declared:
                warnings.warn(
                    f"{first.name} and {second.name} both write {sorted(shared)} in the stage "
                    f"{first.stage.name}, so only their names put {first.name} first. Say which "
                    f"comes first, with chain({first.name}, {second.name}), or that one of them "
                    f"acts in each batch, with choose([{first.name}, {second.name}]).",
                    AmbiguousOrderWarning,
                    stacklevel=3,
                )


def _why(event: Event, order: Sequence[Algorithm], i: int) -> str:
    if len(order) == 1:
        return "alone here"
    if event.closes and event.partner and event.partner in order[i].events:
        return f"closes {event.partner.value}, in reverse"
    if i == 0:
        return "first of the stages here"
    before = order[i - 1]
    if before.stage < order[i].stage:
        return f"{order[i].stage.name.lower()} comes after {before.stage.name.lower()}"
    if _declares(before, order[i]):
        return f"after {before.name}, as declared"
    return f"same stage as {before.name}, ordered by name"
