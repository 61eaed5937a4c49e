"""A part of the campaign of `tools.kill_campaign`."""

import os

import pytest

from tools.kill_campaign import campaign


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes, to kill them")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_runs_that_are_killed_at_random_moments_go_on_to_the_bit():
    found, faults = campaign(6, seed=1, names=("foreground", "background"))

    assert not faults, "\n".join(faults)
    assert found["kills"] >= 6
