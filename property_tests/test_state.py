"""Laws: a state can't be changed in place, and its plain values survive JSON."""

import json
import math

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable import Algorithm, Event, FrozenStateError, Key, State, Time, Timestamp
from composable.core.state import _CONVERTERS
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer
from tests.support.strategies import times

FIELDS = [field.name for field in attrs.fields(State)]
values = st.one_of(st.none(), st.integers(), st.text(), st.dictionaries(st.text(), st.integers()))
TRAINING = [
    event
    for event in Event
    if not any(word in event.name for word in ("PREDICT", "STANDALONE", "SAVE", "SCHEDULER"))
]


@attrs.frozen(repr=False)
class Assigns(Algorithm):
    """Tries to change the state that it was given."""

    when: Event
    attempt: object

    events = property(lambda self: {self.when})

    def apply(self, event, state):
        self.attempt(state)
        return state


@given(
    st.sampled_from([e for e in TRAINING if e is not Event.LOG]),
    st.sampled_from(FIELDS),
    values,
    st.booleans(),
)
def test_no_algorithm_can_assign_to_a_field_or_delete_it(when, field, value, deletes):
    """Law of immutability: No algorithm can assign to a field, or delete one, at any event."""

    def attempt(state):
        delattr(state, field) if deletes else setattr(state, field, value)

    algorithm = Assigns(when, attempt)
    message = rf"state\.{field} can't be assigned.*Return state\.evolve"
    with pytest.raises(FrozenStateError, match=message):
        make_trainer(algorithms=algorithm, eval_dataloader=batches(), iteration_length=1).fit()


@given(st.text(min_size=1), values)
def test_unknown_names_cannot_be_assigned(name, value):
    """Law of immutability: No algorithm can assign to a field, or delete one, at any event."""
    state = State(torch.nn.Linear(1, 1))

    with pytest.raises(FrozenStateError) as caught:
        setattr(state, name, value)
    assert isinstance(caught.value, AttributeError)


mappings = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)


@given(mappings, st.text(max_size=3), st.sampled_from(["memory", "metrics", "replaced_modules"]))
def test_no_item_of_a_mapping_can_be_changed(mapping, name, field):
    """Law of immutability: No item of the memory, the metrics or the counts of replaced modules, or
    of a mapping in them, can be assigned, deleted, or modified through an outside reference.
    """
    outer, inner = dict(mapping), dict(mapping)
    started = State(torch.nn.Linear(1, 1), **{field: outer})
    evolved = State(torch.nn.Linear(1, 1)).evolve(**{field: outer})
    nested = started.evolve(**{field: {"one": {"two": inner}}})
    with_memory = started.remember("one", {"two": inner})

    outer[name] = inner[name] = "changed"  # what the states were made from

    kept, remembered = getattr(nested, field)["one"]["two"], with_memory.memory["one"]["two"]
    assert (
        dict(getattr(started, field))
        == dict(getattr(evolved, field))
        == kept
        == remembered
        == mapping
    )
    states = (started, evolved, started.evolve(loss=None), started.remember("me", 1))
    for frozen in (kept, remembered, *(getattr(state, field) for state in states)):
        with pytest.raises(TypeError):
            frozen[name] = 0
        with pytest.raises(TypeError):
            del frozen[name]


@given(
    st.sampled_from([field for field in FIELDS if field not in _CONVERTERS]),
    mappings,
    st.text(max_size=3),
    values,
)
def test_evolve_and_remember_change_one_thing_of_another_state(field, memory, name, value):
    """Law of immutability: `evolve` and `remember` change one field or item of the new state, and
    nothing in the original.
    """
    state = State(torch.nn.Linear(1, 1)).evolve(memory=memory)
    before = {name: getattr(state, name) for name in FIELDS}

    evolved, remembering = state.evolve(**{field: value}), state.remember(name, value)

    assert getattr(evolved, field) is value
    assert all(getattr(state, name) is before[name] for name in FIELDS)
    assert all(getattr(evolved, name) is before[name] for name in FIELDS if name != field)
    assert dict(remembering.memory) == {**memory, name: value}
    assert all(remembering.memory[one] is state.memory[one] for one in memory if one != name)
    assert dict(state.memory) == memory


@given(st.text().filter(lambda name: name not in FIELDS and name != "self"), values)
def test_evolve_refuses_an_unknown_field(name, value):
    """Law of immutability: `evolve` rejects unknown fields."""
    state = State(torch.nn.Linear(1, 1))

    with pytest.raises(TypeError, match="State has no field"):
        state.evolve(**{name: value})


@given(st.sampled_from([Time(1, "ep"), Timestamp(), Key(0)]), st.data(), values)
def test_times_timestamps_and_keys_are_frozen_too(frozen, data, value):
    """Law of immutability: Times, timestamps and keys are also immutable."""
    field = data.draw(st.sampled_from([field.name for field in attrs.fields(type(frozen))]))

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(frozen, field, value)


counts = st.integers(0, 2**63)
seconds = st.floats(0, 1e12)
timestamps = st.builds(
    Timestamp,
    **{
        field.name: seconds if field.name.endswith("_wct") else counts
        for field in attrs.fields(Timestamp)
    },
)
names = st.text(min_size=1, max_size=5)
numbers = st.one_of(st.floats(), st.integers(-(2**63), 2**63))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3))
trees = st.recursive(leaves, lambda t: st.lists(t) | st.dictionaries(names, t), max_leaves=5)
durations = times().filter(lambda time: time.value and str(time.unit.value) != "dur")


@given(
    timestamp=timestamps,
    previous_timestamp=timestamps,
    max_duration=st.none() | durations,
    epoch_length=st.none() | st.integers(1, 2**63),
    key=st.builds(Key, st.integers(0, 2**64 - 1)),
    metrics=st.dictionaries(names, st.dictionaries(names, numbers)),
    frozen=st.frozensets(names),
    memory=st.dictionaries(names, trees),
)
def test_json_has_the_plain_values_of_a_state(**fields):
    state = State(linear(), **fields)

    plain = json.loads(state.to_json())

    assert Timestamp(**plain["timestamp"]) == state.timestamp
    assert Timestamp(**plain["previous_timestamp"]) == state.previous_timestamp
    assert (plain["seed"], set(plain["frozen"])) == (state.key.seed, state.frozen)
    assert plain["memory"] == state.memory
    whole = plain["max_duration"]
    assert (None if whole is None else Time.parse(whole)) == state.max_duration
    for label, results in state.metrics.items():
        for name, value in results.items():
            written = plain["metrics"][label][name]
            written = float(written) if isinstance(written, str) else written
            assert written == value or (math.isnan(written) and math.isnan(value))


def test_state_of_a_run_is_plain():
    state = make_trainer().fit()
    plain = json.loads(state.to_json())

    assert plain["timestamp"]["batch"] == 6
    assert (plain["seed"], plain["max_duration"], plain["elapsed"]) == (17, "2ep", 1.0)
    assert (plain["optimizers"], plain["is_main_process"]) == (["SGD"], True)


def test_memory_that_is_not_plain_is_left_out():
    state = State(linear(), memory={"a": 1, "b": (2,), "c": {"d": 0.5, "e": math.inf}})
    assert json.loads(state.to_json())["memory"] == {"a": 1}
