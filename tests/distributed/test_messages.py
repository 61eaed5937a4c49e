"""How often the processes of a run exchange gradients."""

from functools import partial

import pytest
import torch

from composable.distributed import FSDP2
from tests.support import parallel_messages, parallel_runs
from tests.support.processes import run

SHARDED = {
    "kind": "list",
    "model": parallel_runs.plain_net,
    "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "eval_dataloader": None,
    "metrics": {},
    "count": 32,
    "max_duration": "1ep",
    "grad_accum": 2,
}
STEPS, MICROBATCHES = 2, 4


def fit(options):
    return parallel_messages.fit_counting(**options)


def _scattered(size, **strategy):
    first = run(fit, size, {**SHARDED, "parallel": FSDP2(shards=2 * size, **strategy)})[0]
    return first["losses"], first["messages"]["reduce_scatter_base"], first["messages"]


def test_sharded_gradients_are_reduced_once_a_step():
    losses, once, _ = _scattered(2)
    others, each, _ = _scattered(2, reduce_each_microbatch=True)
    assert once > 0
    assert each == MICROBATCHES * once
    assert once % STEPS == 0
    assert others == pytest.approx(losses, rel=1e-5)
