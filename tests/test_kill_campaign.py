"""A part of the campaigns of `tools.kill_campaign` and `tools.kill_shards`."""

import os
from functools import partial

import pytest

from tools import kill_campaign, kill_shards

ALONE = partial(kill_campaign.campaign, seed=1, names=("foreground", "background"))
TOGETHER = partial(kill_shards.campaign, seed=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes, to kill them")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("campaign", [ALONE, TOGETHER], ids=["alone", "together"])
def test_runs_that_are_killed_at_random_moments_go_on_to_the_bit(campaign):
    found, faults = campaign(2)

    assert not faults, "\n".join(faults)
    assert found["kills"] >= 2
