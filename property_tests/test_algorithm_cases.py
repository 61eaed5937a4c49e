"""Every algorithm of the library has one case, and acts on the problems that it names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.algorithm_cases import ALGORITHMS, EXTRAS
from tests.support.cases import exported_algorithms
from tests.support.outcomes import differences, outcome
from tests.support.runs import PROBLEMS


def test_every_exported_algorithm_has_one_case():
    exported = exported_algorithms()

    assert {case.kind for case in ALGORITHMS} == set(exported)
    assert len(ALGORITHMS) == len(exported)


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("case", ALGORITHMS + EXTRAS, ids=repr)
def test_an_algorithm_acts_on_the_problems_on_which_it_can_and_on_no_other(problem, case):
    try:
        acts = bool(differences(outcome(problem, case.example), outcome(problem)))
    except Exception:
        acts = False

    assert acts is case.acts_on(problem)


@given(st.sampled_from(ALGORITHMS + EXTRAS), st.data())
def test_every_instance_of_a_case_can_be_built(case, data):
    instance = data.draw(case.instances)

    assert type(instance) is case.kind
    assert instance.name == case.name
