"""What the tests of the functions share."""

import random

import jaxtyping
import pytest
import torch


@pytest.fixture
def unchecked():
    """Call as a user does: without the check of annotations that a test run may add."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def _compile_unchecked(request):
    """Compile a function without the check, which breaks its graph."""
    if request.node.get_closest_marker("compile"):
        request.getfixturevalue("unchecked")


@pytest.fixture
def still_generators(unchecked):
    """Check that the test moves no global generator; the check of annotations moves one."""
    before = random.getstate(), torch.get_rng_state()
    yield
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
