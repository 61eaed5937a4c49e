"""The state is a value; requests are flags."""

import json
import pickle

import attrs
import pytest
import torch
from torch import nn

from composable import State, Time, Timestamp
from composable.batches.model_call import call_with_batch
from composable.batches.spec import BatchSpec
from tests.support.models import linear


def state(**fields):
    return State(model=linear(), **fields)


def test_every_field_can_be_evolved():
    before = state()

    for field in attrs.fields(State):
        value = getattr(before, field.name)
        assert getattr(before.evolve(**{field.name: value}), field.name) == value


@pytest.mark.parametrize("one", [state(), state().without_outputs()], ids=["whole", "split"])
def test_an_unknown_field_is_answered_with_the_known_ones(one):
    with pytest.raises(
        TypeError, match=r"State has no field \['losss'\]: it has \['averages', 'batch'"
    ):
        one.evolve(losss=1)


def test_outputs_of_a_split_batch_are_refused_by_name_until_there_are_others():
    split = state(outputs=1).without_outputs()

    for one in (split, split.evolve(loss=None), pickle.loads(pickle.dumps(split))):
        with pytest.raises(
            AttributeError, match=r"for a batch that was split are not kept.*at AFTER_FORWARD"
        ):
            one.outputs  # noqa: B018
    assert split.evolve(outputs=2).outputs == 2


def test_inputs_and_targets_are_read_by_the_spec():
    one = state(batch={"x": 1, "y": 2}, batch_spec=BatchSpec("x", "y"))

    assert (one.inputs, one.targets) == (1, 2)
    assert one.with_batch(targets=3).batch == {"x": 1, "y": 3}
    assert one.batch == {"x": 1, "y": 2}


def test_forward_calls_the_model_on_the_inputs_or_on_the_whole_batch():
    model = nn.Identity()
    batch = (torch.zeros(1), torch.ones(1))

    assert State(model, batch=batch).forward() is batch[0]
    assert State(model, batch=batch, model_call=call_with_batch).forward() is batch


def test_gradients_are_those_of_the_parameters_unless_replaced():
    one = state()
    assert one.current_gradients() == {}

    one.model.weight.grad = torch.ones_like(one.model.weight)

    assert list(one.current_gradients()) == ["weight"]
    assert one.evolve(gradients={"bias": 1}).current_gradients() == {"bias": 1}


def test_elapsed_and_reached_measure_against_the_run():
    one = state(
        timestamp=Timestamp(epoch=1, batch=6, batch_in_epoch=1),
        max_duration=Time.parse("4ep"),
        epoch_length=5,
    )

    assert one.elapsed == 0.3
    assert one.reached("0.3dur")
    assert one.reached("1ep")
    assert not one.reached("7ba")
    with pytest.raises(ValueError, match="the run has no max_duration"):
        _ = state().elapsed


def test_a_state_prints_where_it_stands():
    assert repr(state().remember("EMA", 1)) == (
        "<State of Linear: epoch 0, batch 0, max_duration None, memory ['EMA']>"
    )


@pytest.mark.parametrize(
    ("whole", "length", "epoch", "steps"),
    [
        ("3ep", 10, 1.3, 30),
        ("25ba", 10, 1.3, 25),
        ("25ba", None, None, 25),
        ("3ep", None, None, None),
        ("90sec", 10, 1.3, None),
        (None, 10, 1.3, None),
    ],
)
def test_json_has_the_epochs_as_a_fraction_and_the_batches_of_the_run(
    whole, length, epoch, steps, monkeypatch
):
    monkeypatch.setenv("LOCAL_RANK", "1")
    now = Timestamp(epoch=1, batch=13, batch_in_epoch=3)
    state = State(nn.Linear(1, 1), timestamp=now, epoch_length=length, max_duration=whole)

    plain = json.loads(state.to_json())

    assert (plain["epoch"], plain["max_steps"], plain["local_rank"]) == (epoch, steps, 1)


def test_json_is_written_to_a_path(tmp_path):
    state, path = State(nn.Linear(1, 1), timestamp=Timestamp(batch=3)), tmp_path / "state.json"

    text = state.to_json(path, indent=2)

    assert path.read_text() == text + "\n"
