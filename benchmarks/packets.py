"""Count the packets of a training step between two hosts, which are network namespaces.

python -m benchmarks.packets        # each way of training, beside PyTorch by hand
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from composable import Callback, Trainer
from composable.distributed import DDP, FSDP2
from tools.hosts import campaign
from tools.hosts.network import Hosts, wait

WARMUP, STEPS = 20, 100
STATISTICS = Path("/sys/class/net/eth0/statistics")


class Listens(Callback):
    """May request something at the end of each batch."""

    def batch_end(self, state: Any, logger: Any) -> None:
        """Request nothing."""


WAYS: dict[str, dict[str, Any]] = {
    "DDP()": {"parallel": DDP()},
    "DDP() and a callback": {"parallel": DDP(), "callbacks": [Listens()]},
    "DDP(exact=True)": {"parallel": DDP(exact=True)},
    "FSDP2()": {"parallel": FSDP2()},
}
BY_HAND = ["DistributedDataParallel", "fully_shard", "fully_shard of the model alone"]


def sent() -> tuple[int, int]:
    """Return the packets and bytes that this host has sent."""
    return tuple(int((STATISTICS / f"tx_{one}").read_text()) for one in ("packets", "bytes"))  # type: ignore[return-value]


def train_by_hand(way: str, model: nn.Module, data: list[Any]) -> tuple[int, int]:
    """Train in a plain loop, and return what was sent by the steps after the first."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    if way == "fully_shard":
        for one in model.children():
            if isinstance(one, nn.Linear):
                fully_shard(one, mesh=mesh)
    called: Any = model
    if way == "DistributedDataParallel":
        called = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader, steps, before = DataLoader(data, 8, sampler=DistributedSampler(data)), 0, (0, 0)
    while steps < WARMUP + STEPS:
        for inputs, targets in loader:
            if steps == WARMUP:
                before = sent()
            if steps == WARMUP + STEPS:
                break
            optimizer.zero_grad()
            cross_entropy(called(inputs), targets).backward()
            optimizer.step()
            steps += 1
    after = sent()
    dist.barrier()
    return after[0] - before[0], after[1] - before[1]


def train(way: str, model: nn.Module, data: list[Any]) -> tuple[int, int]:
    """Train with the Trainer, and return what was sent by a second call of `fit`."""
    trainer = Trainer(
        model,
        train_dataloader=DataLoader(data, 16),
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.01),
        max_duration=f"{WARMUP}ba",
        progress_bar=False,
        seed=0,
        **WAYS[way],
    )
    trainer.fit()
    before = sent()
    trainer.fit(duration=f"{STEPS}ba")
    after = sent()
    return after[0] - before[0], after[1] - before[1]


def on_a_host(way: str) -> None:
    """Train in one of two processes; rank 0 prints what it sends in a step."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    data = [(torch.randn(32), torch.tensor(i % 10)) for i in range(640)]
    run = train_by_hand if way in BY_HAND else train
    packets, size = run(way, nn.Sequential(*layers), data)
    if os.environ["RANK"] == "0":
        print(f"| {way} | {packets / STEPS:.0f} | {size / STEPS:,.0f} |")


def main() -> None:
    """Run each way on two hosts."""
    campaign.SCRIPT = Path(__file__)
    print("| | packets | bytes |\n|---|--:|--:|")
    for way in [*BY_HAND, *WAYS]:
        with TemporaryDirectory() as folder, Hosts(2, Path(folder)) as hosts:
            logs = [Path(folder, f"{host}.log") for host in (0, 1)]
            started = {n: hosts.start(n, campaign.launch(n, way), logs[n]) for n in (0, 1)}
            wait(started, time.monotonic(), campaign.LIMIT)
            said = logs[0].read_text()
        print(next((one for one in said.splitlines() if one.startswith("| ")), said), flush=True)


if __name__ == "__main__":
    on_a_host(sys.argv[1]) if len(sys.argv) > 1 else main()
