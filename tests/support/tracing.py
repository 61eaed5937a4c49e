"""Traces of runs: the algorithms and observers at each event, and their reads, writes and draws."""

from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import Any
from unittest import mock

import attrs

from composable import Algorithm, Callback, Event, Key, Plan, State
from composable.core.algorithm import leaves
from composable.plan import dispatch
from composable.plan.dispatch import Dispatcher

# `Algorithm` counts the replaced modules of every method, which no method declares.
FIELDS = frozenset(field.name for field in attrs.fields(State)) - {"replaced_modules"}

SETTLED = frozenset(
    {"batch_spec", "model_call", "device", "epoch_length", "precision", "loss_module"}
)
"""Fields that the Trainer sets before a run: no algorithm writes them or declares to read them."""

TIME = frozenset({"timestamp", "previous_timestamp"})
"""The fields of the time: an algorithm that declares one may read both."""


@attrs.define
class Call:
    """An algorithm, or a part of one, that was called."""

    algorithm: Algorithm
    batch: int
    """The number of the batch to which the event belongs."""
    draws_for: frozenset[int]
    """The numbers that it may fold in: that of the batch, or that of the finished batches."""
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
        """Yield the call, its parts, and their parts."""
        yield self
        for part in self.parts:
            yield from part.all_parts()

    def all_read(self) -> set[str]:
        """Return the fields that the call and its parts read."""
        return set().union(*(call.read for call in self.all_parts()))


@attrs.define
class Firing:
    """An event, and the algorithms and observers that ran."""

    event: Event
    calls: list[Call] = attrs.field(factory=list)
    watched: list[str] = attrs.field(factory=list)

    @property
    def who(self) -> list[str]:
        """Return the names of the algorithms and observers that ran, in order."""
        return [*(call.who for call in self.calls), *self.watched]


class Trace:
    """Every event of a run, in order."""

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self.at_work: list[Call] = []
        self.inputs: list[dict[str, Any]] = []
        self.depth = 0
        """How many events are being fired, one within another."""

    def calls(self) -> Iterator[tuple[Event, Call]]:
        """Yield each call, parts included, with its event."""
        for firing in self.firings:
            for call in firing.calls:
                yield from ((firing.event, part) for part in call.all_parts())

    def asks_how_long(self) -> bool:
        """Return whether an algorithm reads the length of the run, which differs in each part."""
        return any("max_duration" in call.read for _, call in self.calls())

    def draws(self) -> dict[tuple[str, Event, int], list[tuple[Any, ...]]]:
        """Return the random streams that were used, by name, event and batch."""
        drawn: dict[tuple[str, Event, int], list[tuple[Any, ...]]] = {}
        for event, call in self.calls():
            if call.folded:
                drawn.setdefault((call.who, event, call.batch), []).extend(call.folded)
        return drawn

    def draws_of(self, name: str) -> dict[tuple[Event, int], list[tuple[Any, ...]]]:
        """Return the random streams that one algorithm used."""
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
        trace.depth += 1
        try:
            return fire(self, event, state)
        finally:
            trace.depth -= 1

    def firing_and_note(self: Dispatcher, event: Event) -> Callable[[State], State]:
        return partial(fire_and_note, self, event)

    def call_and_note(self: Algorithm, event: Event, state: State) -> State:
        if not trace.depth:  # the Trainer asks with which weights the state is evaluated
            return call(self, event, state)
        before = vars(state)
        finished, began = before["timestamp"].batch, before["previous_timestamp"].batch
        batch = began if event.counts_batch else finished
        note = Call(self, batch, frozenset({batch, finished}))
        (trace.at_work[-1].parts if trace.at_work else trace.firings[-1].calls).append(note)
        trace.at_work.append(note)
        trace.inputs.append(before)
        try:
            new = call(self, event, state)
        finally:
            trace.at_work.pop()
            trace.inputs.pop()
        note.acted = new is not state
        note.wrote = {name for name in FIELDS if vars(new).get(name) is not before.get(name)}
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
        stack.enter_context(mock.patch.object(Dispatcher, "firing", firing_and_note))
        stack.enter_context(mock.patch.object(Algorithm, "__call__", call_and_note))
        stack.enter_context(mock.patch.object(dispatch, "called_at", lambda _, one: one))
        stack.enter_context(mock.patch.object(Key, "fold", fold_and_note))
        stack.enter_context(mock.patch.object(State, "__getattribute__", read_and_note))
        yield trace


class Present(Callback):
    """Records its calls in a trace."""

    def __init__(self, trace: Trace, name: str = "Present") -> None:
        self.trace, self.own_name = trace, name

    @property
    def name(self) -> str:
        return self.own_name

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        self.trace.firings[-1].watched.append(self.name)


# --- what a trace must show ---


def check_who_ran(plan: Plan, trace: Trace, quiet: Set[str] = frozenset()) -> None:
    """Check that each event runs its lines of the plan in order, except for quiet observers."""
    planned = lines(plan)
    for firing in trace.firings:
        expected = [line.who for line in planned[firing.event] if line.who not in quiet]
        assert firing.who == expected, f"{firing.event}: {firing.who} ran, planned: {expected}"
        for call, algorithm in zip(firing.calls, plan.transforms(firing.event), strict=True):
            own = {leaf.name: type(leaf) for leaf in leaves(algorithm)}
            for part in call.all_parts():
                assert firing.event in part.algorithm.events, (firing.event, part.who)
                assert part.algorithm.parts or type(part.algorithm) is own[part.who]


def check_what_was_read_and_written(plan: Plan, trace: Trace) -> None:
    """Check that each call reads and writes what its line declares."""
    planned = lines(plan)
    for firing in trace.firings:
        for call, line in zip(firing.calls, planned[firing.event], strict=False):
            assert call.who == line.who
            excess = call.wrote - set(line.writes)
            assert not excess, f"{line.who} wrote {excess} at {firing.event}"
            reads = set(line.reads)
            known = reads | SETTLED | (TIME if reads & TIME else set())
            excess = call.all_read() - known
            assert not excess, f"{line.who} read {excess} at {firing.event}"


def check_brackets(trace: Trace) -> None:
    """Check that algorithms at both events of a pair run last at the second, in reverse."""
    opened: dict[Event, list[str]] = {}
    for firing in trace.firings:
        who = [call.who for call in firing.calls]
        if firing.event.opens:
            opened[firing.event] = who
        elif firing.event.closes:
            at_first = opened.get(firing.event.partner, [])
            both = [name for name in reversed(at_first) if name in who]
            alone = [name for name in who if name not in at_first]
            assert who == alone + both, f"{firing.event}: {who}, opened by {at_first}"


_BY_EXAMPLE = {"AlternatingFlip", "PairedAugment"}


def check_streams(trace: Trace, seed: int) -> None:
    """Check that each stream has its own name: the seed, the algorithm and the batch."""
    named: dict[int, tuple[Any, ...]] = {}
    for event, call in trace.calls():
        for before, data, after in call.folded:
            assert before == seed, f"{call.who} draws from a key that is not that of the run"
            assert data[0] == call.who, f"{call.who} draws from a stream of {data} at {event}"
            # Surgery has no batch yet, and some numbers are those of an example, in every epoch.
            once = data == (call.who,) and (event is Event.INIT or call.who in _BY_EXAMPLE)
            assert once or data[-1] in call.draws_for, f"{call.who} folds {data} in at {event}"
            assert named.setdefault(after, data) == data, f"{data} and {named[after]} are one"


def lines(plan: Plan) -> dict[Event, list[Any]]:
    """Return the lines of a plan, by event."""
    by_event = {event: list(of_it) for event, of_it in groupby(plan.steps(), lambda s: s.event)}
    return {event: by_event.get(event, []) for event in Event}
