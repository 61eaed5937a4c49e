"""What a run really did: who ran at which event, what it read, wrote and drew."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import attrs

from composable import Algorithm, Callback, Event, Key, State
from composable.core.plan import Dispatcher

FIELDS = frozenset(field.name for field in attrs.fields(State))

SETTLED = frozenset({"spec", "takes_batch", "device", "epoch_length"})
"""What the Trainer settles before a run: nobody writes it, so nobody declares to read it."""

TIME = frozenset({"timestamp", "began"})
"""Two names of when it is: who declares one reads both."""


@attrs.define
class Call:
    """An algorithm, or a part of one, that was called."""

    algorithm: Algorithm
    batch: int
    """The number of the batch, as the state had it."""
    parts: list["Call"] = attrs.field(factory=list)
    acted: bool = False
    read: set[str] = attrs.field(factory=set)
    wrote: set[str] = attrs.field(factory=set)
    folded: list[tuple[Any, ...]] = attrs.field(factory=list)
    """For each key that it derived: the seed of the key before, what was folded in, the seed."""

    @property
    def who(self) -> str:
        return self.algorithm.name

    def all_parts(self) -> Iterator["Call"]:
        """Itself, and its parts, and theirs."""
        yield self
        for part in self.parts:
            yield from part.all_parts()

    def all_read(self) -> set[str]:
        """What was read by itself and its parts."""
        return set().union(*(call.read for call in self.all_parts()))


@attrs.define
class Firing:
    """An event that was fired, and who ran at it."""

    event: Event
    calls: list[Call] = attrs.field(factory=list)
    watched: list[str] = attrs.field(factory=list)

    @property
    def who(self) -> list[str]:
        """The names of all who ran, in order."""
        return [*(call.who for call in self.calls), *self.watched]


class Trace:
    """Every event of a run, in order."""

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self.at_work: list[Call] = []
        self.inputs: list[dict[str, Any]] = []

    def calls(self) -> Iterator[tuple[Event, Call]]:
        """Everyone who was called, parts included, and at which event."""
        for firing in self.firings:
            for call in firing.calls:
                yield from ((firing.event, part) for part in call.all_parts())

    def asks_how_long(self) -> bool:
        """Whether anyone asked for the length of the run, and so sees another in each part."""
        return any("max_duration" in call.read for _, call in self.calls())

    def draws(self) -> dict[tuple[str, Event, int], list[tuple[Any, ...]]]:
        """The streams that everyone drew from: by name, event and batch."""
        drawn: dict[tuple[str, Event, int], list[tuple[Any, ...]]] = {}
        for event, call in self.calls():
            if call.folded:
                drawn.setdefault((call.who, event, call.batch), []).extend(call.folded)
        return drawn

    def draws_of(self, name: str) -> dict[tuple[Event, int], list[tuple[Any, ...]]]:
        """The streams that one of them drew from."""
        return {key[1:]: drawn for key, drawn in self.draws().items() if key[0] == name}


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace the runs of the Trainers that are built in this block."""
    trace = Trace()
    fire, call, fold, read = (
        Dispatcher.fire,
        Algorithm.__call__,
        Key.fold,
        State.__getattribute__,
    )

    def fire_and_note(self: Dispatcher, event: Event, state: State) -> State:
        trace.firings.append(Firing(event))
        return fire(self, event, state)

    def call_and_note(self: Algorithm, event: Event, state: State) -> State:
        before = vars(state)
        note = Call(self, before["timestamp"].batch)
        (trace.at_work[-1].parts if trace.at_work else trace.firings[-1].calls).append(note)
        trace.at_work.append(note)
        trace.inputs.append(before)
        try:
            new = call(self, event, state)
        finally:
            trace.at_work.pop()
            trace.inputs.pop()
        note.acted = new is not state
        note.wrote = {name for name in FIELDS if vars(new)[name] is not before[name]}
        return new

    def fold_and_note(self: Key, *data: Any) -> Key:
        key = fold(self, *data)
        if trace.at_work:
            trace.at_work[-1].folded.append((self.seed, data, key.seed))
        return key

    def read_and_note(self: State, name: str) -> Any:
        value = read(self, name)
        # What an algorithm wrote itself it may read: only what it was given counts.
        if trace.at_work and name in FIELDS and value is trace.inputs[-1][name]:
            trace.at_work[-1].read.add(name)
        return value

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Dispatcher, "fire", fire_and_note))
        stack.enter_context(mock.patch.object(Algorithm, "__call__", call_and_note))
        stack.enter_context(mock.patch.object(Key, "fold", fold_and_note))
        stack.enter_context(mock.patch.object(State, "__getattribute__", read_and_note))
        yield trace


class Present(Callback):
    """Puts itself on the list of those who ran."""

    def __init__(self, trace: Trace, name: str = "Present") -> None:
        self.trace, self.own_name = trace, name

    @property
    def name(self) -> str:
        return self.own_name

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        self.trace.firings[-1].watched.append(self.name)


def undeclared_reads(call: Call) -> set[str]:
    """The fields that an algorithm read and doesn't declare."""
    reads = set(call.algorithm.reads)
    known = reads | SETTLED | (TIME if reads & TIME else set())
    return call.all_read() - known
