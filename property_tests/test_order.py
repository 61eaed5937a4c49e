"""Law: the list of algorithms is a set: in any order it gives the same training."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Plan
from tests.support.algorithm_cases import algorithm_sets, combinations, everything, problems
from tests.support.outcomes import differences, outcome
from tests.support.runs import LANGUAGE, VISION
from tests.support.strategies import fewer

pytestmark = pytest.mark.filterwarnings(
    # Noise and clipping write gradients in one stage: their names order them, and the plan warns.
    "ignore::composable.AmbiguousOrderWarning",
    "ignore::composable.IdleAlgorithmWarning",
)


@st.composite
def sets_in_two_orders(draw):
    problem = draw(problems)
    of_what = draw(st.sampled_from([algorithm_sets, combinations]))
    chosen = draw(of_what(problem, min_size=2))
    return problem, chosen, draw(st.permutations(chosen))


@fewer
@given(sets_in_two_orders())
@example((VISION, everything(VISION), everything(VISION)[::-1]))
@example((LANGUAGE, everything(LANGUAGE), everything(LANGUAGE)[::-1]))
def test_every_order_of_the_list_of_algorithms_gives_bit_identical_weights(drawn):
    """Law of combinators: Randomly nested combinations give the same weights in any order, are
    repeatable, and do not change the random numbers of other algorithms.
    """
    problem, one, other = drawn
    loader = problem.shuffled()

    left_by_one = outcome(problem, one, loader=loader, eval_dataloader=loader)
    left_by_other = outcome(problem, other, loader=loader, eval_dataloader=loader)

    assert not differences(left_by_one, left_by_other)


@given(sets_in_two_orders())
def test_every_order_of_the_list_of_algorithms_gives_one_plan(drawn):
    _, one, other = drawn

    assert Plan.compile(one) == Plan.compile(other)
    assert Plan.compile(one).explain() == Plan.compile(other).explain()
