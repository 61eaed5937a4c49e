"""Monitors of runs of several processes: they change nothing, and log what one process logs."""

from functools import partial

import pytest
import torch

from composable.distributed import DDP, FSDP2
from tests.support import parallel_monitors as runs
from tests.support.campaign import drawn
from tests.support.processes import run

OPTIONS = {"optimizers": partial(torch.optim.SGD, lr=0.1), "count": 32, "grad_accum": 2}
STRATEGIES = {"exact": DDP(shards=4, exact=True), "fast": DDP(shards=4), "sharded": FSDP2(shards=4)}


def fit(options):
    return runs.fit(**options)


@pytest.mark.parametrize("name", drawn(STRATEGIES, 2))
def test_monitors_of_several_processes(name):
    options = {**OPTIONS, "parallel": STRATEGIES[name]}
    (alone,) = run(fit, 1, {**OPTIONS, "parallel": DDP(shards=4), "monitored": True})
    first, _ = run(fit, 2, {**options, "monitored": True})
    plain, _ = run(fit, 2, {**options, "monitored": False})

    assert first["weights"] == plain["weights"]
    norms = [metric for metric in alone["latest"] if metric.startswith("l2_norm")]
    assert len(norms) > 3
    for metric in norms:
        assert first["latest"][metric] == pytest.approx(alone["latest"][metric], rel=1e-4, abs=1e-6)
