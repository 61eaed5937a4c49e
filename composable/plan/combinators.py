"""Combinations of algorithms: in sequence, under a condition, in a window, one of several."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import torch

from composable.core.algorithm import Algorithm, Stage, check_name, check_returned, nested
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import (
    Clock,
    HasTime,
    Time,
    TimeLike,
    Timestamp,
    TimeUnit,
    check_time,
    reached,
)
from composable.core.window import Window
from composable.plan.declarations import as_algorithm, as_list

C = TypeVar("C", bound="Combined")

_BEFORE_TRAINING = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD})
_DEEPEST = 100


@attrs.frozen(repr=False)
class Combined(Algorithm):
    """A combination of algorithms: it has the effects of all its parts, the stage of the first."""

    parts: tuple[Algorithm, ...]  # type: ignore[misc]
    name: str = attrs.field(kw_only=True)
    _events: frozenset[Event] = attrs.field(init=False, eq=False)
    _depth: int = attrs.field(init=False, eq=False)

    @_events.default
    def _join_events(self) -> frozenset[Event]:  # once, since they are read at every event
        return frozenset().union(*(part.events for part in self.parts))

    @_depth.default
    def _check_depth(self) -> int:
        inner = (part._depth for part in self.parts if isinstance(part, Combined))
        depth = 1 + max(inner, default=0)
        if depth > _DEEPEST:
            raise ValueError(
                f"combinations of algorithms must be nested at most {_DEEPEST} deep: chain takes "
                "any number of algorithms, and a predicate can combine several conditions."
            )
        return depth

    @property
    def events(self) -> frozenset[Event]:
        """The events at which any of its parts acts."""
        return self._events

    @property
    def stage(self) -> Stage:  # type: ignore[override]
        """The stage of its first part."""
        return self.parts[0].stage if self.parts else Stage.OTHER

    @property
    def reads(self) -> frozenset[str]:
        """The fields that any of its parts reads."""
        return frozenset({"timestamp", "max_duration"}).union(*(part.reads for part in self.parts))

    @property
    def writes(self) -> frozenset[str]:
        """The fields that any of its parts writes."""
        return frozenset().union(*(part.writes for part in self.parts))

    def apply(self, event: Event, state: State) -> State:
        """Run its part; combinations of several define another method."""
        return _act(self.parts[0], event, state)

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it, with each part formatted by `show`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.describe(repr)


# --- in sequence ---


@attrs.frozen(repr=False)
class Chain(Combined):
    """See `chain`."""

    _order: dict[Event, tuple[Algorithm, ...]] = attrs.field(init=False, eq=False)
    """The parts that listen to each event, in the order in which they run."""

    @_order.default
    def _ordered(self) -> dict[Event, tuple[Algorithm, ...]]:
        return {event: nested(self.parts, event) for event in self.events}

    def apply(self, event: Event, state: State) -> State:
        """Run the parts in their order."""
        for part in self._order.get(event, ()):
            state = check_returned(part(event, state))
        return state

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        return f"chain({', '.join(map(show, self.parts))})" if self.parts else "identity"


def chain(*algorithms: Any, name: str | None = None) -> Algorithm:
    """Combine algorithms into one that runs them in the given order.

    A list of algorithms is a set; a chain is a sequence. In the plan it has the position of its
    first part. At an event that closes a pair, parts that listen to both events of the pair run in
    reverse order, as in the plan.

    Args:
        algorithms: Algorithms or functions `(event, state) -> state`.
        name: The name in the plan.

    Example:
        >>> from composable import Plan, chain
        >>> from composable.algorithms import LabelSmoothing, MixUp
        >>> print(chain(LabelSmoothing(0.1), MixUp()).name)
        chain(LabelSmoothing, MixUp)
        >>> a, b, c = LabelSmoothing(0.1), MixUp(), MixUp(name="again")
        >>> chain(chain(a, b), c) == chain(a, chain(b, c)) == chain(a, b, c)
        True
    """
    parts: list[Algorithm] = []
    for algorithm in map(as_algorithm, algorithms):
        parts += algorithm.parts if isinstance(algorithm, Chain) else [algorithm]
    return _named(Chain, name, tuple(parts))


identity = Chain((), name="identity")
"""The algorithm that does nothing."""


# --- under a condition ---


@attrs.frozen(repr=False)
class When(Combined):
    """See `when`."""

    predicate: Callable[[State], bool] = attrs.field(kw_only=True)

    def match(self, event: Event, state: State) -> bool:
        """Return whether the condition holds."""
        return bool(self.predicate(state))

    def window(self) -> Window:
        """Return a window with a condition, which is known only at run time."""
        return Window(condition=f"where {self._predicate_name} holds")

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        return f"when({self._predicate_name}, {show(self.parts[0])})"

    @property
    def _predicate_name(self) -> str:
        return getattr(self.predicate, "__name__", repr(self.predicate))


def when(predicate: Callable[[State], bool], algorithm: Any, *, name: str | None = None) -> When:
    """Restrict an algorithm to states in which a condition holds.

    The condition is evaluated at each event of the algorithm. It must have the same value at both
    events of a method that acts at two events of a batch, as MixUp does. For conditions on the
    time, use `during` or `every`, which have this property.

    Args:
        predicate: A function of the state.
        algorithm: An algorithm or a function `(event, state) -> state`.
        name: The name in the plan.

    Example:
        >>> from composable import when
        >>> from composable.algorithms import LabelSmoothing
        >>> def large(state):
        ...     return len(state.targets) >= 32
        >>> when(large, LabelSmoothing(0.1))
        when(large, LabelSmoothing(smoothing=0.1))
    """
    if not callable(predicate):
        raise TypeError(f"predicate={predicate!r} must be a function of the state.")
    return _named(When, name, (as_algorithm(algorithm, "algorithm is"),), predicate=predicate)


def always(state: State) -> bool:
    """Return True: the condition that holds in every state."""
    return True


def never(state: State) -> bool:
    """Return False: the condition that holds in no state."""
    return False


@attrs.frozen(repr=False)
class During(Combined):
    """See `during`."""

    start: Time = attrs.field(kw_only=True, eq=str)
    end: Time = attrs.field(kw_only=True, eq=str)

    def match(self, event: Event, state: State) -> bool:
        """Return whether the batch begins in the window."""
        began = batch_began(event, state)
        started = not self.start.value or reached(state, self.start, began)
        return started and not reached(state, self.end, began)

    def idle_reason(self) -> str | None:
        """Explain that its window is empty, or comes after all events of its part."""
        if self.start.unit is self.end.unit and self.end <= self.start:
            return f"no batch lies from {self.start} up to {self.end}"
        if self.start.value and self.parts[0].events <= _BEFORE_TRAINING:
            return f"{self.parts[0].name} acts before training begins, and its window is later"
        return super().idle_reason()

    def window(self) -> Window:
        """Return the window from its start up to its end."""
        return Window(self.start, self.end)

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        return f"during({str(self.start)!r}, {str(self.end)!r}, {show(self.parts[0])})"


def during(start: TimeLike, end: TimeLike, algorithm: Any, *, name: str | None = None) -> During:
    """Restrict an algorithm to a window, from the batch at `start` up to the one before `end`.

    A batch belongs to the window in which it begins, with all of its events, including its end and
    the evaluation after it. So adjacent windows share no batch and skip none.

    Args:
        start: The start of the window, in any unit: "0.2dur", "3ep", "100ba".
        end: The end of the window; the batch that begins then is outside.
        algorithm: An algorithm or a function `(event, state) -> state`.
        name: The name in the plan.

    Example:
        >>> from composable import during
        >>> from composable.algorithms import MixUp
        >>> during("0dur", "0.8dur", MixUp())
        during('0dur', '0.8dur', MixUp(alpha=0.2, per_sample=False, interpolate_loss=False))
    """
    times = {"start": check_time("start", start), "end": check_time("end", end)}
    return _named(During, name, (as_algorithm(algorithm, "algorithm is"),), **times)


@attrs.frozen(repr=False)
class Every(Combined):
    """See `every`."""

    interval: Time = attrs.field(kw_only=True, eq=str)

    def match(self, event: Event, state: State) -> bool:
        """Return whether the batch, or its epoch, is the first of an interval."""
        now = batch_began(event, state)
        count = now.batch if self.interval.unit is TimeUnit.BATCH else now.epoch
        return count % int(self.interval.value) == 0

    def window(self) -> Window:
        """Return a window with its interval."""
        return Window(interval=self.interval)

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        return f"every({str(self.interval)!r}, {show(self.parts[0])})"


def every(interval: TimeLike, algorithm: Any, *, name: str | None = None) -> Every:
    """Restrict an algorithm to the first of every so many batches or epochs.

    Args:
        interval: "2ba" for batches 0, 2, 4, ...; "2ep" for all batches of epochs 0, 2, 4, ...
        algorithm: An algorithm or a function `(event, state) -> state`.
        name: The name in the plan.

    Raises:
        ValueError: `interval` is zero, or neither in batches nor in epochs.

    Example:
        >>> from composable import every
        >>> from composable.algorithms import MixUp
        >>> every("2ba", MixUp()).name
        "every('2ba', MixUp)"
    """
    time = check_time("interval", interval)
    if time.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH) or not time.value:
        raise ValueError(
            f"interval={interval!r} must be one or more batches or epochs: '2ba' or '3ep'."
        )
    return _named(Every, name, (as_algorithm(algorithm, "algorithm is"),), interval=time)


# --- one of several ---


@attrs.frozen(repr=False)
class Choose(Combined):
    """See `choose`."""

    exclusive = True

    weights: tuple[float, ...] = attrs.field(kw_only=True)

    @property
    def reads(self) -> frozenset[str]:
        """The fields that any of its parts reads, and the key."""
        return super().reads | {"key"}

    def apply(self, event: Event, state: State) -> State:
        """Run the part that is drawn for the step."""
        return _act(self.drawn(event, state), event, state)

    def window(self) -> Window:
        """Return a window with a condition: the draws are known only at run time."""
        return Window(condition=f"where it is drawn, one of {len(self.parts)}")

    def drawn(self, event: Event, state: State) -> Algorithm:
        """Draw the part that acts in the batch."""
        batch = batch_began(event, state).batch
        key = state.key.of_step or state.key  # one part for all batches of a step
        generator = key.fold(self.name, batch).generator()
        at = float(torch.rand((), generator=generator, dtype=torch.float64)) * sum(self.weights)
        for part, weight in zip(self.parts, self.weights, strict=True):
            at -= weight
            if at < 0:
                return part
        return self.parts[-1]

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        equal = len(set(self.weights)) == 1
        weights = "" if equal else f", weights={list(self.weights)}"
        return f"choose([{', '.join(map(show, self.parts))}]{weights})"


def choose(
    algorithms: Sequence[Any], *, weights: Sequence[float] | None = None, name: str | None = None
) -> Choose:
    """Draw one of several algorithms for each batch.

    Args:
        algorithms: Algorithms or functions `(event, state) -> state`; `identity` for none.
        weights: The relative probability of each; equal by default.
        name: The name in the plan, and of its random numbers.

    Raises:
        ValueError: There are no algorithms, or `weights` don't match them.

    Example:
        >>> from composable import choose, identity
        >>> from composable.algorithms import MixUp
        >>> choose([MixUp(), identity], weights=[3, 1]).name
        'choose([MixUp, identity], weights=[3.0, 1.0])'
    """
    parts = tuple(map(as_algorithm, as_list(algorithms)))
    if not parts:
        raise ValueError(f"algorithms={algorithms!r} must contain at least one algorithm.")
    shares = (1.0,) * len(parts) if weights is None else _as_shares(weights, len(parts))
    return _named(Choose, name, parts, weights=shares)


def _as_shares(weights: Any, count: int) -> tuple[float, ...]:
    message = (
        f"weights={weights!r} must be {count} numbers, one for each of algorithms: finite, not "
        "negative, and not all zero."
    )
    try:
        shares = tuple(map(float, weights))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(message) from None
    fit = len(shares) == count and all(0 <= share < float("inf") for share in shares)
    if not fit or not sum(shares):
        raise ValueError(message)
    return shares


# --- hyperparameters that change ---


@attrs.frozen(repr=False)
class Anneal(Combined):
    """See `anneal`."""

    kind: type[Algorithm] = attrs.field(kw_only=True)
    hyperparameters: tuple[tuple[str, Any], ...] = attrs.field(kw_only=True)

    def apply(self, event: Event, state: State) -> State:
        """Run the algorithm with the hyperparameters at the time of the batch."""
        values = _at(self.hyperparameters, state.evolve(timestamp=batch_began(event, state)))
        return _act(self.kind(**values, name=self.parts[0].name), event, state)

    def describe(self, show: Callable[[Any], str]) -> str:
        """Return the call that creates it."""
        return f"anneal({show(self.parts[0])})"

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.hyperparameters]
        return f"anneal({', '.join([self.kind.__name__, *given])})"


def anneal(kind: type[Algorithm], *, name: str | None = None, **hyperparameters: Any) -> Anneal:
    """Create an algorithm whose hyperparameters are functions of time.

    Args:
        kind: The class of the algorithm.
        name: The name of its memory and of its random numbers; by default the name of the class.
        hyperparameters: Its arguments: values, or functions of the time, such as the schedules of
            `composable.optim`.

    Raises:
        TypeError: `kind` is not the class of an algorithm.

    Example:
        >>> from composable import anneal
        >>> from composable.algorithms import LabelSmoothing
        >>> from composable.optim import linear
        >>> fading = anneal(LabelSmoothing, smoothing=linear(0.2, 0.0))
        >>> fading.name
        'anneal(LabelSmoothing)'
    """
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise TypeError(f"kind={kind!r} must be a class of algorithms, such as MixUp.")
    beginning = Clock(Timestamp(), max_duration="1ep", epoch_length=1)
    own = {} if name is None else {"name": name}
    given = tuple(hyperparameters.items())
    first = kind(**_at(given, beginning), **own)
    return _named(Anneal, None, (first,), kind=kind, hyperparameters=given)


def _at(hyperparameters: tuple[tuple[str, Any], ...], clock: HasTime) -> dict[str, Any]:
    return {name: value(clock) if callable(value) else value for name, value in hyperparameters}


# --- shared helpers ---


def batch_began(event: Event, state: State) -> Timestamp:
    """Return the timestamp at the beginning of the batch to which an event belongs."""
    return state.previous_timestamp if event.counts_batch else state.timestamp


def _act(part: Algorithm, event: Event, state: State) -> State:
    if event not in part.events:
        return state
    return check_returned(part(event, state))


def _named(combinator: type[C], name: str | None, parts: tuple[Algorithm, ...], **fields: Any) -> C:
    """Create a combination; its name is by default the call that creates it."""
    if name is not None:
        check_name(None, None, name)
    made = combinator(parts, **fields, name=name or "")
    return made if name else attrs.evolve(made, name=made.describe(lambda part: part.name))
