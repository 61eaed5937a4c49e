"""Runs of two processes that are killed at random moments, and continue."""

import random
from functools import partial

import pytest

from composable.checkpoint import find
from composable.distributed import DDP, FSDP2
from tests.support import parallel_runs as runs
from tests.support.campaign import FULL, drawn
from tests.support.processes import Failed, attempt, by_options, run

STRATEGIES = {"ddp": DDP(shards=2, exact=True), "fsdp": FSDP2(shards=2)}
KILLS = 3 if FULL else 1
EPOCHS = 40  # seconds, which the kill is within
fit = partial(by_options, runs.fit)


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(["fsdp", "ddp"], 1))
def test_run_whose_processes_are_killed_loses_nothing_and_goes_on_to_the_bit(name, tmp_path):
    options = {"parallel": STRATEGIES[name], "model": runs.plain_net}
    options["max_duration"] = f"{EPOCHS}ep"
    whole = run(fit, 2, options)[0]
    folder, draw = tmp_path / "run", random.Random(name)
    saved, kills = 0, 0
    for _ in range(KILLS):
        killed = draw.choice([[0], [1], [0, 1]])
        moment = draw.uniform(0.1, 1.0)
        results = attempt(
            fit, 2, {**options, "folder": str(folder), "kill": dict.fromkeys(killed, moment)}
        )
        kills += any(isinstance(one, Failed) for one in results)
        if not folder.exists():
            continue
        found, broken = find(folder)
        assert broken == []
        newest = max((one.manifest.batch for one in found), default=0)
        assert newest >= saved
        saved = newest
    ended = run(fit, 2, {**options, "folder": str(folder)})
    assert kills  # otherwise nothing was tested
    for one in ended:
        for key in ("weights", "memory", "metrics", "batch", "sample", "loss"):
            assert one[key] == whole[key]
