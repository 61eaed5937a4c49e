"""A part of the campaign of `tools.kill_shards`."""

import os

import pytest

from tools.kill_shards import campaign


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes, to kill them")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_that_are_killed_while_they_save_go_on_to_the_bit():
    found, faults = campaign(2, seed=2)

    assert not faults, "\n".join(faults)
    assert found["runs"] == 2
    assert found["kills"] >= 2
