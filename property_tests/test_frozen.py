"""Law: a state can't be changed in place; `evolve` returns a new one."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable import Algorithm, Event, FrozenStateError, Key, State, Time, Timestamp
from tests.support.runs import batches, trainer

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


def run_with(when, attempt):
    trainer(algorithms=Assigns(when, attempt), eval_dataloader=batches(), iteration_length=1).fit()


@given(
    st.sampled_from([e for e in TRAINING if e is not Event.LOG]),
    st.sampled_from(FIELDS),
    values,
)
def test_no_algorithm_can_assign_to_a_field_of_the_state(when, field, value):
    with pytest.raises(FrozenStateError, match=f"state.{field} can't be assigned"):
        run_with(when, lambda state: setattr(state, field, value))


@given(st.sampled_from([e for e in TRAINING if e is not Event.LOG]), st.sampled_from(FIELDS))
def test_no_algorithm_can_delete_a_field_of_the_state(when, field):
    with pytest.raises(FrozenStateError):
        run_with(when, lambda state: delattr(state, field))


@given(st.text(min_size=1), values)
def test_a_name_that_is_no_field_can_not_be_assigned_either(name, value):
    state = State(torch.nn.Linear(1, 1))

    with pytest.raises(FrozenStateError):
        setattr(state, name, value)


mappings = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)


@given(mappings, st.text(max_size=3), st.sampled_from(["memory", "metrics"]))
def test_no_item_of_memory_or_metrics_can_be_assigned_or_deleted(mapping, name, field):
    started = State(torch.nn.Linear(1, 1), **{field: mapping})
    evolved = State(torch.nn.Linear(1, 1)).evolve(**{field: mapping})

    for state in (started, evolved, started.evolve(loss=None), started.remember("me", 1)):
        with pytest.raises(TypeError):
            getattr(state, field)[name] = 0
        with pytest.raises(TypeError):
            del getattr(state, field)[name]


@given(mappings, st.text(max_size=3), st.sampled_from(["memory", "metrics"]))
def test_no_item_of_a_mapping_in_memory_or_metrics_can_be_assigned_or_reached(mapping, name, field):
    inner = dict(mapping)
    state = State(torch.nn.Linear(1, 1)).evolve(**{field: {"one": {"two": inner}}})

    inner[name] = "changed"

    kept = getattr(state, field)["one"]["two"]
    assert kept == mapping
    with pytest.raises(TypeError):
        kept[name] = 0


@given(mappings, st.text(max_size=3), st.sampled_from(["memory", "metrics"]))
def test_changing_the_dictionary_that_a_state_was_made_from_does_not_change_the_state(
    mapping, name, field
):
    given_to_start, given_to_evolve, expected = dict(mapping), dict(mapping), dict(mapping)
    started = State(torch.nn.Linear(1, 1), **{field: given_to_start})
    evolved = State(torch.nn.Linear(1, 1)).evolve(**{field: given_to_evolve})

    given_to_start[name] = given_to_evolve[name] = "changed"

    assert dict(getattr(started, field)) == expected
    assert dict(getattr(evolved, field)) == expected


CONVERTED = ("memory", "metrics", "gradients", "max_duration")


@given(st.sampled_from([field for field in FIELDS if field not in CONVERTED]), values)
def test_evolve_changes_one_field_of_another_state_and_nothing_of_this_one(field, value):
    state = State(torch.nn.Linear(1, 1))
    before = {name: getattr(state, name) for name in FIELDS}

    evolved = state.evolve(**{field: value})

    assert getattr(evolved, field) is value
    assert all(getattr(state, name) is before[name] for name in FIELDS)
    assert all(getattr(evolved, name) is before[name] for name in FIELDS if name != field)


@given(mappings, st.text(max_size=3), values)
def test_remember_changes_one_item_of_another_state(memory, name, value):
    state = State(torch.nn.Linear(1, 1)).evolve(memory=memory)

    remembering = state.remember(name, value)

    assert dict(remembering.memory) == {**memory, name: value}
    assert dict(state.memory) == memory


@given(st.text().filter(lambda name: name not in FIELDS and name != "self"), values)
def test_evolve_refuses_an_unknown_field(name, value):
    state = State(torch.nn.Linear(1, 1))

    with pytest.raises(TypeError, match="State has no field"):
        state.evolve(**{name: value})


@given(st.sampled_from([Time(1, "ep"), Timestamp(), Key(0)]), st.data(), values)
def test_times_timestamps_and_keys_are_frozen_too(frozen, data, value):
    field = data.draw(st.sampled_from([field.name for field in attrs.fields(type(frozen))]))

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(frozen, field, value)
