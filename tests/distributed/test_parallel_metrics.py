"""Evaluation on several processes with objects as metrics."""

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import parallel_metrics
from tests.support.processes import run

CASES = {
    "copies": (DDP(), 7, [4, 3]),
    "sharded": (FSDP2(), 7, [7, 7]),
    "one batch": (DDP(), 44, [1, 1]),  # each process evaluates it
}


def evaluate(parallel, batch_size, plain=False):
    return parallel_metrics.evaluate(parallel, batch_size, plain=plain)


@pytest.mark.parametrize("name", CASES)
def test_each_process_updates_torchmetrics_on_its_part_only(name):
    parallel, batch_size, updates = CASES[name]
    alone = evaluate(None, batch_size)
    several = run(evaluate, 2, parallel, batch_size)
    assert alone["results"]["examples"] == 44
    assert [one["updates"] for one in several] == updates
    for one in several:
        assert one["results"] == pytest.approx(alone["results"], rel=1e-5)


def test_torchmetrics_beside_an_object_that_needs_all_batches_count_them_once():
    alone = evaluate(None, 7, True)
    several = run(evaluate, 2, DDP(), 7, True)
    assert alone["results"]["seen"] == 44
    for one in several:
        assert one["updates"] == 7
        assert one["results"] == pytest.approx(alone["results"], rel=1e-5)
