"""A part of `python -m tools.kill_campaign --loops 100`."""

import os

import pytest

from tests.integrations.killed_loops import SCRIPTS
from tests.support.commands import Command

# In a process of its own: one that has threads, as those of some loggers, must not fork.
SCRIPT = """
from tools import kill_campaign as tool
found, faults = tool.campaign(3, seed=1, names={names}, table=tool.LOOPS)
assert not faults, "\\n".join(faults)
assert found["kills"] >= 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes, to kill them")
@pytest.mark.parametrize("library", sorted({script.library for script in SCRIPTS.values()}))
def test_trainings_that_are_killed_and_started_again_end_to_the_bit(library, tmp_path):
    names = [name for name, script in SCRIPTS.items() if script.library == library]

    status, _, errors = Command(tmp_path, SCRIPT.format(names=names)).finish(600)

    assert status == 0, errors
