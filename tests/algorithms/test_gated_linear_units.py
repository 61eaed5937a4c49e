"""Gated linear units in the loop: the function's model, once, from the algorithm's own key."""

import pytest
import torch

from composable import Event, Key
from composable.algorithms import GatedLinearUnits
from composable.functional import gated_linear_units
from tests.support.runs import LANGUAGE, same, weights


def gate_of(algorithm, seed=17):
    model = LANGUAGE.trainer(algorithms=[algorithm], seed=seed).state.model
    return model.hidden[0].non_gated.weight


@pytest.mark.parametrize(
    "options",
    [{}, {"act_fn": torch.tanh, "gated_layer_bias": True}, {"non_gated_layer_bias": True}],
)
def test_training_is_that_of_the_model_of_the_function(options):
    draw = Key(17).fold("GatedLinearUnits").generator()
    model = gated_linear_units(LANGUAGE.model(), generator=draw, **options)

    ours = LANGUAGE.trainer(algorithms=[GatedLinearUnits(**options)]).fit().model
    theirs = LANGUAGE.trainer(model).fit().model

    assert repr(ours) == repr(theirs)
    assert same(weights(ours), weights(theirs))
    assert not torch.equal(ours.hidden[0].non_gated.weight, gate_of(GatedLinearUnits(**options)))


def test_it_acts_once():
    algorithm, state = GatedLinearUnits(), LANGUAGE.trainer().state

    assert algorithm.events == {Event.INIT}
    assert all(algorithm(event, state) is state for event in Event if event is not Event.INIT)


def test_the_new_weights_depend_on_the_seed_and_the_name_alone():
    first = gate_of(GatedLinearUnits())

    assert torch.equal(first, gate_of(GatedLinearUnits()))
    assert torch.equal(first, gate_of(GatedLinearUnits(act_fn=torch.tanh)))
    assert not torch.equal(first, gate_of(GatedLinearUnits(), seed=1))
    assert not torch.equal(first, gate_of(GatedLinearUnits(name="other")))
