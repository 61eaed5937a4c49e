"""Law: the plain values of a state survive JSON, to the bit."""

import json
import math

import attrs
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
