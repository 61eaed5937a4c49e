"""Law: the table of pairs whose order in a chain matters is exact, in both directions."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from composable import Event, chain
from composable.core.algorithm import nested
from composable.plan.ordering import topological_sort
from tests.support.algorithm_cases import ALGORITHMS, PAIRS, combinable
from tests.support.algorithms import GradientNoise, WordNoise
from tests.support.campaign import drawn
from tests.support.cases import BOTH_FAIL, LAST_BITS, ONE_FAILS, OTHER_WEIGHTS
from tests.support.outcomes import differences, outcome
from tests.support.runs import LANGUAGE, PROBLEMS, VISION

pytestmark = pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")

DECLARED = {(p.first, p.second, on): p.how for p in PAIRS for on in p.on}
LISTED, OTHERS = [], []
for problem in PROBLEMS:
    for pair in combinations(combinable(problem, extras=False), 2):
        first, second = (one.name for one in topological_sort([one.example for one in pair]))
        listed = (first, second, problem.name) in DECLARED
        (LISTED if listed else OTHERS).append((problem, *pair))
SAME = "not at all"


def attempt(problem, algorithms):
    """Return the outcome of a run, or the error that it raises."""
    try:
        return outcome(problem, algorithms, max_duration="4ba", eval_interval="2ba")
    except Exception as error:
        return error


def how_they_differ(problem, a, b):
    """Return how `chain(a, b)` and `chain(b, a)` differ."""
    if all(nested((a, b), event) == nested((b, a), event) for event in Event):
        return SAME  # they never meet: the two chains call the same in the same order
    one, other = attempt(problem, chain(a, b)), attempt(problem, chain(b, a))
    failed = sum(isinstance(result, Exception) for result in (one, other))
    if failed:
        return BOTH_FAIL if failed == 2 else ONE_FAILS
    if not differences(one, other):
        return SAME
    return LAST_BITS if not differences(one, other, to_rounding) else OTHER_WEIGHTS


def to_rounding(one, other):
    """Return whether two tensors, or two other values, are equal to rounding."""
    if isinstance(one, Tensor) and one.dtype == other.dtype and one.shape == other.shape:
        return torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
    if isinstance(one, float):
        return one == pytest.approx(other, rel=1e-3, abs=1e-5)
    return bool(one == other) if not isinstance(one, Tensor) else False


@pytest.mark.parametrize(("problem", "one", "other"), LISTED + drawn(OTHERS, 20), ids=repr)
def test_table_of_pairs_matches_chains_in_both_orders(problem, one, other):
    first, second = topological_sort([one.example, other.example])
    declared = DECLARED.get((first.name, second.name, problem.name), SAME)

    assert how_they_differ(problem, first, second) == declared


@pytest.mark.parametrize("pair", PAIRS)
def test_table_lists_pairs_in_the_order_of_the_plan(pair):
    of = {case.name: case for case in ALGORITHMS}
    first, second = of[pair.first], of[pair.second]
    listed = topological_sort([first.example, second.example])

    assert [a.name for a in listed] == [pair.first, pair.second]
    for problem in PROBLEMS:
        if problem.name in pair.on:
            assert first.acts_on(problem)
            assert second.acts_on(problem)
            fails = isinstance(attempt(problem, listed), Exception)
            assert fails is (pair.how == BOTH_FAIL)
    meetings = [(p.first, p.second, on) for p in PAIRS for on in p.on]
    assert len(meetings) == len(set(meetings))


@pytest.mark.parametrize(
    ("problem", "known", "other"),
    [
        (LANGUAGE, WordNoise(), "SelectiveBackprop"),
        (VISION, GradientNoise(), "GradientClipping"),
        (LANGUAGE, GradientNoise(), "GradientClipping"),
    ],
)
def test_difference_of_a_known_pair_is_found(problem, known, other):
    (example,) = [one.example for one in ALGORITHMS if one.name == other]

    assert how_they_differ(problem, known, example) == OTHER_WEIGHTS
