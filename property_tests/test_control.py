"""Law: requests are joined by "or". In which order callbacks ask never matters."""

from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable import Control
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.observers import Asks, Trace
from tests.support.runs import make_trainer
from tests.support.strategies import fewer, requests, wishes
from tests.support.traced import SavesBy

# Requests are drawn at random: some can't be met.
pytestmark = pytest.mark.filterwarnings("ignore::composable.UnsupportedRequestWarning")


@given(st.lists(requests), st.randoms())
def test_requests_are_joined_by_or(asked, random):
    joined = reduce(or_, asked, Control.NONE)
    again = random.sample(2 * asked, 2 * len(asked))

    assert reduce(or_, again, Control.NONE) == joined
    for request in Control:
        assert (request in joined) is any(request in one for one in asked)


@st.composite
def wishes_in_two_orders(draw):
    """Draw requests, and the same in another order, some of them twice."""
    one = draw(wishes())
    twice = draw(st.lists(st.sampled_from(one), max_size=2)) if one else []
    return one, draw(st.permutations([*one, *twice]))


@fewer
@given(wishes_in_two_orders(), st.booleans())
def test_order_and_repetition_of_requests_do_not_matter(orders, evaluates):
    def run(asked):
        trace, saved = Trace(), []
        training = make_trainer(
            mlp(dropout=0.5),
            eval_dataloader=batches() if evaluates else None,
            callbacks=[
                *(Asks(*wish) for wish in asked),
                trace,
                SavesBy(lambda state: saved.append(state.timestamp.batch)),
            ],
        )
        training.fit()
        return weights(training.state.model), trace.events, saved

    (weights_of_one, *rest_of_one), (weights_of_other, *rest_of_other) = map(run, orders)

    assert same(weights_of_one, weights_of_other)
    assert rest_of_one == rest_of_other
