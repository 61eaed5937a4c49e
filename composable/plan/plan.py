"""Who acts when: algorithms and callbacks compiled into one table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from composable.core._notes import add_origin_note
from composable.core._warnings import warn_user
from composable.core.algorithm import Algorithm, check_returned, leaves, nested
from composable.core.callback import Callback, FunctionCallback, callback_id, hooks_of
from composable.core.control import Control
from composable.core.event import Event
from composable.core.logger import Logger, LoggerDestination
from composable.core.state import State
from composable.core.time import HasTime, TimeLike
from composable.plan.compatibility import Caveat, caveats, check_compatibility, check_names
from composable.plan.declarations import as_algorithm
from composable.plan.effects import CheckedAlgorithm, ReadOnlyHook
from composable.plan.ordering import explain_position, topological_sort
from composable.plan.timeline import Timeline, timeline

__all__ = ["Dispatcher", "IdleAlgorithmWarning", "Plan", "as_algorithm"]

Listeners: TypeAlias = tuple[Sequence[Algorithm], Sequence[Callable[..., Any]]]


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

    Callbacks only look and ask. They run after the algorithms: the library's own (`builtin_callbacks`), then
    the user's (`user_callbacks`), then global ones (`global_callbacks`), each in the order of their list. Loggers
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
    builtin_callbacks: tuple[Callback, ...] = ()
    user_callbacks: tuple[Callback, ...] = ()
    global_callbacks: tuple[Callback, ...] = ()

    @classmethod
    def compile(
        cls,
        algorithms: Iterable[Algorithm | Callable[[Event, State], State]] = (),
        callbacks: Iterable[Callback | Callable[..., Control | None]] = (),
        loggers: Iterable[LoggerDestination] = (),
        *,
        builtin_callbacks: Iterable[Callback] = (),
    ) -> "Plan":
        """Order algorithms and callbacks.

        Args:
            algorithms: A set of algorithms, or functions `(event, state) -> state`.
            callbacks: Callbacks, or functions `(event, state, logger) -> Control | None`.
            loggers: Where metrics go.
            core: Callbacks and loggers that belong to whoever compiles, and come first.

        Raises:
            TypeError: One of them is of the wrong kind.
            ValueError: Two algorithms have one name or can't be ordered, or a callback is given
                twice.
            IncompatibleAlgorithmsError: Two algorithms that conflict may act on one batch.
        """
        chosen = topological_sort(as_algorithm(algorithm) for algorithm in as_list(algorithms))
        check_names(chosen)
        check_compatibility(chosen)
        for algorithm in chosen:
            if why := algorithm.idle_reason():
                _warn_idle(algorithm.name, why)
        for caveat in caveats(chosen):
            warn_user(str(caveat), caveat.kind)
        watchers = [as_callback(callback) for callback in as_list(callbacks)]
        places = [as_destination(logger) for logger in as_list(loggers)]
        plan = cls(tuple(chosen), builtin_callbacks=tuple(builtin_callbacks))
        for watcher in (*watchers, *places):
            plan = plan.with_callback(watcher)
        return plan

    def with_callback(self, callback: Callback) -> "Plan":
        """This plan with one more callback or logger of the user's.

        Raises:
            ValueError: The plan has it already.
        """
        if callback_id(callback) in map(
            callback_id, (*self.builtin_callbacks, *self.user_callbacks)
        ):
            raise ValueError(
                f"the callback {callback.name} was given twice, the same instance: it watches "
                "already. Drop one of them, or make another instance."
            )
        return attrs.evolve(self, user_callbacks=(*self.user_callbacks, callback))

    def with_global_callbacks(self, callbacks: Iterable[Callback]) -> "Plan":
        """This plan with these global callbacks, but for those that it has anyway."""
        present = set(map(callback_id, (*self.builtin_callbacks, *self.user_callbacks)))
        new = tuple(one for one in callbacks if callback_id(one) not in present)
        return attrs.evolve(self, global_callbacks=new) if new or self.global_callbacks else self

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks and loggers, in the order in which they run."""
        everyone = (*self.builtin_callbacks, *self.user_callbacks, *self.global_callbacks)
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
                        explain_position(event, transforms, i, self.algorithms),
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
        if callback_id(callback) in map(callback_id, self.builtin_callbacks):
            return "observes and asks, the library's own first"
        if callback_id(callback) in map(callback_id, self.global_callbacks):
            return "observes and asks, global ones after yours"
        return "observes and asks, in list order"

    @property
    def caveats(self) -> list[Caveat]:
        """What was reported as doubtful when the plan was compiled."""
        return caveats(self.algorithms)

    def explain(self) -> str:
        """A table of event, who, stage, reads, writes, why here; and then what is doubtful."""
        rows = [("event", "who", "stage", "reads", "writes", "why here")]
        for step in self.steps():
            fields = (", ".join(step.reads) or "-", ", ".join(step.writes) or "-")
            rows.append((step.event.value, step.who, step.stage, *fields, step.why))
        if len(rows) == 1:
            return "Nothing is registered: the loop runs alone."
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*lines, *(f"\nCaveat: {caveat}" for caveat in self.caveats)])

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for tools: what JSON can hold.

        `version` counts up when the meaning of a key changes. `algorithms` are in their order, and
        each of `parts` says what its whole says.
        """
        steps = [{**attrs.asdict(step), "event": step.event.value} for step in self.steps()]
        return {
            "version": 1,
            "algorithms": {one.name: _as_data(one) for one in self.algorithms},
            "callbacks": [callback.name for callback in self.callbacks],
            "caveats": [
                {"first": d.first, "second": d.second, "why": d.why, "kind": d.kind.__name__}
                for d in self.caveats
            ],
            "steps": steps,
        }

    def timeline(self, max_duration: TimeLike, epoch_length: int | None = None) -> Timeline:
        """When each algorithm is active, over a run of this length: a picture in a notebook.

        Args:
            max_duration: The length of the run.
            epoch_length: Batches in an epoch, where it is known.

        Raises:
            ValueError: `max_duration` is nothing, or a fraction of itself.

        Example:
            >>> from composable import Plan, during
            >>> from composable.algorithms import EMA, MixUp
            >>> plan = Plan.compile([during("0ep", "8ep", MixUp()), EMA(ema_start="0.5dur")])
            >>> print(plan.timeline("10ep"))
            MixUp  mix      from 0ep to 8ep
            EMA    average  from 5ep to 10ep
        """
        return timeline(self.algorithms, max_duration, epoch_length)

    def report_idle(self, run: HasTime, absent: Mapping[Event, str]) -> None:
        """Warn of algorithms that can never act in a run, though they could in another.

        Args:
            run: Knows how long the run is.
            absent: The events that don't occur in it, and why.
        """
        # The others were reported when the plan was compiled.
        able = [algorithm for algorithm in self.algorithms if algorithm.idle_reason() is None]
        for algorithm in able:
            for leaf in leaves(algorithm):
                if all(event in absent for event in leaf.events):
                    at = ", ".join(event.value for event in Event if event in leaf.events)
                    why = ", ".join(dict.fromkeys(absent[event] for event in leaf.events))
                    _warn_idle(leaf.name, f"it acts at {at} alone, and {why}")
        if run.max_duration is None:
            return
        for row in timeline(able, run.max_duration, run.epoch_length).rows:
            if not row.spans:
                _warn_idle(row.name, f"its window lies outside of a run of {run.max_duration}")

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
        self.clear()
        self.set_plan(plan)

    def set_plan(self, plan: Plan) -> None:
        """Run this plan from here on."""
        self.plan = plan
        hooks = [self._hooks(callback) for callback in plan.callbacks]
        self._table: dict[Event, Listeners] = {}
        for event in Event:
            transforms: Sequence[Any] = plan.transforms(event)
            if self.check_effects:
                transforms = [CheckedAlgorithm(algorithm) for algorithm in transforms]
            watching = tuple(of_one[event] for of_one in hooks if event in of_one)
            if transforms or watching:
                self._table[event] = (transforms, watching)

    def _hooks(self, callback: Callback) -> dict[Event, Callable[..., Any]]:
        hooks = hooks_of(callback)
        if not self.check_effects:
            return hooks
        return {event: ReadOnlyHook(hook, callback.name, event) for event, hook in hooks.items()}

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
            add_origin_note(error, at_work, event.name)
            raise
        return state

    def run_algorithms(self, event: Event, state: State) -> State:
        """The state after the algorithms have acted, and nobody else."""
        transforms, _ = self._table.get(event, ((), ()))
        return self._run((transforms, ()), event, state)

    def run_callbacks(self, event: Event, state: State) -> None:
        """Let those who watch hear of an event that the algorithms have acted at already."""
        _, watching = self._table.get(event, ((), ()))
        self._run(((), watching), event, state)

    def _join(self, asked: object) -> None:
        if not isinstance(asked, Control):
            raise TypeError(
                f"a callback returned {asked!r} and must return None or a Control, such as "
                "Control.STOP."
            )
        self.request(asked)

    def request(self, request: Control) -> None:
        """Ask for something on top of what was asked for."""
        self.requests |= request
        self.pending = bool(self.requests)

    def listens(self, event: Event) -> bool:
        """Whether anyone listens to an event."""
        return event in self._table

    def clear(self) -> None:
        """Drop what was asked for."""
        self.requests = Control.NONE
        self.pending = False

    def state_dict(self) -> dict[str, Any]:
        """Return the pending requests."""
        return {"pending": self.requests.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the pending requests."""
        self.clear()
        self.request(Control(state["pending"]))

    def pop(self, request: Control) -> bool:
        """Whether something was asked for; it counts as granted from here on."""
        if not self.pending:
            return False
        asked = bool(self.requests & request)
        self.requests &= ~request
        self.pending = bool(self.requests)
        return asked


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


def _warn_idle(name: str, why: str) -> None:
    warn_user(f"{name} can never act: {why}. Drop it, or change that.", IdleAlgorithmWarning)


def _as_data(algorithm: Algorithm) -> dict[str, Any]:
    def names(kinds: Iterable[type | str]) -> list[str]:
        return sorted(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)

    return {
        "call": repr(algorithm),
        "class": type(algorithm).__name__,
        "stage": algorithm.stage.name.lower(),
        "events": [event.value for event in Event if event in algorithm.events],
        "reads": sorted(algorithm.reads),
        "writes": sorted(algorithm.writes),
        "before": names(algorithm.before),
        "after": names(algorithm.after),
        "incompatible_with": names(algorithm.incompatible_with),
        "discouraged_with": names(algorithm.discouraged_with),
        "replaces": sorted(algorithm.replaces),
        "parts": [{"name": part.name, **_as_data(part)} for part in algorithm.parts],
    }
