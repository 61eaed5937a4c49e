"""The log names a process that takes longer than the others, which wait for it."""

import logging
import os
import time

import pytest
import torch
from torch import nn

from composable.distributed import DDP, FSDP2, Processes
from composable.engines import pace as pace_module
from composable.engines.pace import Pace
from tests.support.processes import run
from tests.support.runs import make_trainer

STRATEGIES = {"fast": DDP(), "exact": DDP(shards=2, exact=True), "sharded": FSDP2()}


class Slow(nn.Linear):
    seconds = 0.0

    def forward(self, input):
        time.sleep(self.seconds)
        return super().forward(input)


def fit(parallel, where):
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("composable").addHandler(handler)
    seconds = 0.012 * int(os.environ["RANK"])

    def load(examples):
        time.sleep(seconds if where == "data" else 0.0)
        return torch.utils.data.default_collate(examples)

    model = Slow(2, 2)
    model.seconds = seconds if where == "model" else 0.0
    examples = [(torch.ones(2), torch.tensor(0))] * 440
    loader = torch.utils.data.DataLoader(examples, batch_size=4, collate_fn=load)
    make_trainer(model, loader, parallel=parallel).fit()
    return logged


CASES = [("fast", "data"), ("fast", "model"), ("exact", "model"), ("sharded", "data")]


@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_slow_rank_is_logged_once(name, where):
    logged, others = run(fit, 2, STRATEGIES[name], where)
    assert len(logged) == 1
    assert logged[0].startswith("rank 1 on ")
    assert not others


def test_one_long_step_is_not_slow_and_a_change_is_logged(monkeypatch):
    messages = []
    monkeypatch.setattr(pace_module.log, "warning", lambda text, *a: messages.append(text % a))
    pace = Pace(Processes())
    steps = [[5, 5, 500], *[[5, 5, 9]] * 299]
    steps += [[5, 5, 7]] * 100 + [[9, 5, 5]] * 100
    logged = []
    for step in steps:
        pace.compare([one * 1_000_000 for one in step])
        logged.append(len(messages))
    assert [logged[i] for i in (98, 99, 398, 498, 499)] == [0, 1, 1, 1, 2]
    assert messages[0].startswith("rank 2 on another host is slow: outside of collectives")
    assert messages[1].startswith("rank 0 ")
