"""Every algorithm of the library is among the specimens, and acts where they say that it does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import composable.algorithms
from composable import Algorithm
from property_tests.outcomes import differences, outcome
from property_tests.specimens import EXTRAS, SPECIMENS
from tests.runs import PROBLEMS

EXPORTED = {
    getattr(composable.algorithms, name)
    for name in composable.algorithms.__all__
    if isinstance(getattr(composable.algorithms, name), type)
    and issubclass(getattr(composable.algorithms, name), Algorithm)
}


def test_every_exported_algorithm_has_one_specimen():
    assert {specimen.kind for specimen in SPECIMENS} == EXPORTED
    assert len(SPECIMENS) == len(EXPORTED)


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("specimen", SPECIMENS + EXTRAS, ids=repr)
def test_a_specimen_acts_on_the_problems_on_which_it_can_and_on_no_other(problem, specimen):
    try:
        acts = bool(differences(outcome(problem, specimen.telling), outcome(problem)))
    except Exception:
        acts = False

    assert acts is specimen.acts_on(problem)


@given(st.sampled_from(SPECIMENS + EXTRAS), st.data())
def test_every_instance_of_a_specimen_can_be_built(specimen, data):
    instance = data.draw(specimen.instances)

    assert type(instance) is specimen.kind
    assert instance.name == specimen.name
