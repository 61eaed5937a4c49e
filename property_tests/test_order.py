"""Law: the list of algorithms is a set: in any order it gives the same training."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Plan
from property_tests.strategies import algorithm_sets
from tests.runs import (
    Draws,
    GradientNoise,
    Jitter,
    conv_net,
    shuffling_loader,
    six_algorithms,
    trainer,
    weights,
)

# Noise and clipping write gradients in one stage: their names order them, and the plan warns.
pytestmark = pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")


@st.composite
def sets_in_two_orders(draw):
    chosen = draw(algorithm_sets(min_size=2))
    return chosen, draw(st.permutations(chosen))


EVERYTHING = [*six_algorithms(), Jitter(), GradientNoise(), Draws()]


def run(algorithms):
    state = trainer(
        conv_net(),
        shuffling_loader(images=True),
        eval_dataloader=shuffling_loader(images=True),
        algorithms=algorithms,
    ).fit()
    averages = state.memory.get("EMA", {"average": {}})["average"]
    return weights(state.model), averages, state.metrics["eval"], state.memory.get("Draws")


@given(sets_in_two_orders())
@example((EVERYTHING, EVERYTHING[::-1]))
def test_every_order_of_the_list_of_algorithms_gives_bit_identical_weights(orders):
    one, other = orders

    (weights_of_one, averages_of_one, *rest_of_one) = run(one)
    (weights_of_other, averages_of_other, *rest_of_other) = run(other)

    assert all(map(torch.equal, weights_of_one, weights_of_other))
    assert all(torch.equal(t, averages_of_other[name]) for name, t in averages_of_one.items())
    assert averages_of_one.keys() == averages_of_other.keys()
    assert rest_of_one == rest_of_other


@given(sets_in_two_orders())
def test_every_order_of_the_list_of_algorithms_gives_one_plan(orders):
    one, other = orders

    assert Plan.compile(one) == Plan.compile(other)
    assert Plan.compile(one).explain() == Plan.compile(other).explain()
