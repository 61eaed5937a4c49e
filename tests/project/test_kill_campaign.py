"""A part of the campaigns of `tools.kill_campaign` and `tools.kill_shards`."""

import os

import pytest

from tests.support.commands import Command

# In a process of its own: one that has threads, as those of some loggers, must not fork.
SCRIPT = """
from tools import {module} as tool
found, faults = tool.campaign(2, {options})
assert not faults, "\\n".join(faults)
assert found["kills"] >= 2
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes, to kill them")
@pytest.mark.parametrize(
    ("module", "options"),
    [("kill_campaign", "seed=1, names=('foreground', 'background')"), ("kill_shards", "seed=2")],
    ids=["alone", "together"],
)
def test_runs_that_are_killed_at_random_moments_go_on_to_the_bit(module, options, tmp_path):
    script = SCRIPT.format(module=module, options=options)

    status, _, errors = Command(tmp_path, script).finish(600)

    assert status == 0, errors
