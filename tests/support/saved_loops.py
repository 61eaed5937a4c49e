"""Own loops that save and resume on several processes: functions that those processes import."""

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from composable._support.dtensors import whole
from composable.algorithms import EMA, GradientClipping
from composable.integrations import adapt_loop
from tests.support.data import NoisyExamples
from tests.support.own_run import KilledError, _noise
from tests.support.processes import connect, error_of


def train(folder: Any, kind: str, stop: int | None = None) -> Any:
    """Train an own loop under DDP, or with a sharded model, from its last checkpoint on."""
    connect()
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3))
    own: dict[str, Any] = {"noise": []}
    algorithms = [GradientClipping("norm", 1.0)] + ([EMA("2ba")] if kind == "DDP" else [])
    t = adapt_loop(algorithms, model, loss_fn=cross_entropy, seed=3, extra=own, save_folder=folder)
    if kind == "FSDP2":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    t.follow(optimizer)
    t.resume(folder)
    called = DistributedDataParallel(model) if kind == "DDP" else model
    data = NoisyExamples(16)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=True))
    steps = 0
    for _ in range(t.state.timestamp.epoch, 3):
        for inputs, _ in t.epoch(loader):
            if steps == stop:
                raise KilledError
            steps += 1
            t.loss(called(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
            own["noise"].append(_noise())
            t.save()
    return [whole(one).flatten().tolist() for one in model.parameters()], own["noise"]


def until_it_ends(folder: Any, kind: str) -> Any:
    """Train as `train`, and start again after several kills."""
    for stop in (3, 2, 4):
        with suppress(KilledError):
            return train(folder, kind, stop)
    return train(folder, kind)


def outside(folder: Any) -> None:
    """Save where rank 0 cannot write."""
    connect()
    t = adapt_loop([], model := nn.Linear(1, 1), torch.optim.SGD(model.parameters()), seed=1)
    t.save(folder)


def uneven(folder: Any) -> Any:
    """Resume where rank 1 alone has another own object, and return the errors and the clocks."""
    connect()
    model = nn.Linear(1, 1)
    own = {"head": nn.Linear(1, 1)} if dist.get_rank() else {}
    t = adapt_loop([], model, torch.optim.SGD(model.parameters()), seed=1, extra=own)
    t.save(folder)
    t.state = t.state.evolve(metrics={"eval": {"a": 1.0}})
    return error_of(t.resume, folder), bool(t.state.metrics)


def until_stop(folder: Any, stop: int) -> None:
    """Train under DDP for some steps."""
    with suppress(KilledError):
        train(folder, "DDP", stop)
