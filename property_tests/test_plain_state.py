"""Law: the plain values of a state survive JSON, to the bit."""

import json
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable import State, Time, Timestamp
from composable.core.key import Key
from tests.support.models import linear
from tests.support.runs import make_trainer
from tests.support.strategies import times

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
def test_state_read_from_json_has_the_plain_values_of_the_written_one(**fields):
    state = State(linear(), **fields)

    read = State(linear()).load_json(state.to_json())

    assert read.to_json() == state.to_json()
    assert (read.timestamp, read.previous_timestamp) == (state.timestamp, state.previous_timestamp)
    assert (read.key, read.frozen, read.memory) == (state.key, state.frozen, state.memory)
    assert read.max_duration == state.max_duration
    for label, results in state.metrics.items():
        for name, value in results.items():
            other = read.metrics[label][name]
            assert other == value or (math.isnan(other) and math.isnan(value))


def test_state_of_a_run_is_plain():
    state = make_trainer().fit()
    plain = json.loads(state.to_json())

    assert plain["timestamp"]["batch"] == 6
    assert (plain["seed"], plain["max_duration"], plain["elapsed"]) == (17, "2ep", 1.0)
    assert (plain["optimizers"], plain["is_main_process"]) == (["SGD"], True)


def test_memory_that_is_not_plain_stays_as_it_is():
    written = State(linear(), memory={"a": 1, "b": (2,), "c": {"d": 0.5, "e": math.inf}})
    own = State(linear(), memory={"b": (3,), "f": 4})

    read = own.load_json(written.to_json())

    assert dict(read.memory) == {"a": 1, "b": (3,), "f": 4}
    assert read.model is own.model


TEXT = State(linear(), max_duration="2ep").to_json()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "3", TEXT[:-9], TEXT.replace("composable state", "another")),
        *(TEXT.replace('"batch": 0', f'"batch": {n}') for n in ("-1", "0.5", "true", '"1"')),
        TEXT.replace('"version": 1', '"version": 2'),
        TEXT.replace('"total_wct": 0.0', '"total_wct": NaN'),
        TEXT.replace('"2ep"', '"2"'),
        TEXT.replace('"seed": 0', '"seed": -1'),
        TEXT.replace('"metrics": {}', '"metrics": {"eval": 3}'),
        TEXT.replace('"epoch_length": null', '"epoch_length": 0'),
    ],
)
def test_other_text_is_an_error(text):
    with pytest.raises(ValueError, match=r"must be JSON that State\.to_json returned"):
        State(linear()).load_json(text)
    assert text != TEXT


def test_only_text_is_read():
    with pytest.raises(TypeError, match="text=3 must be a string"):
        State(linear()).load_json(3)
    assert Time("2ep") == State(linear()).load_json(TEXT).max_duration
