"""What several processes cost: the Trainer, with sums in any or a fixed order, and torch's DDP.

The loops run in the same processes in alternating blocks of steps, and are compared block by block
in time on the clock, so nothing else should run on the machine. Repeat with

    composable launch -n 2 benchmarks/parallel.py

The figures in docs/performance.md come from this script.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from composable import Trainer
from composable.distributed import DDP, Processes
from composable.distributed.starting import join_processes

SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
BATCHES, EXAMPLES = 100, 128


def perceptron(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def data(width: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(EXAMPLES, width, generator=generator),
            torch.randint(10, (EXAMPLES,), generator=generator),
        )
        for _ in range(BATCHES)
    ]


def plain(width: int, processes: Processes) -> Callable[[], None]:
    """Return an epoch of torch's DDP, on this process's part of each batch."""
    model = DistributedDataParallel(perceptron(width))
    optimizer = SGD(model.parameters())
    part = slice(
        EXAMPLES * processes.rank // processes.size,
        EXAMPLES * (processes.rank + 1) // processes.size,
    )
    batches = data(width)

    def epoch() -> None:
        for inputs, targets in batches:
            loss = cross_entropy(model(inputs[part]), targets[part])
            loss.backward()
            loss.item()  # as the Trainer, which checks each loss on a CPU
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def trained(width: int, parallel: DDP) -> Callable[[], None]:
    """Return an epoch of the Trainer."""
    trainer = Trainer(
        perceptron(width),
        train_dataloader=data(width),
        loss_fn=cross_entropy,
        optimizers=SGD,
        seed=0,
        device="cpu",
        progress_bar=False,
        parallel=parallel,
    )
    return lambda: trainer.fit(duration="1ep") and None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    processes = join_processes()
    for width in (64, 512, 1024):
        loops = {
            "torch's DDP": plain(width, processes),
            "DDP()": trained(width, DDP()),
            "DDP(exact=True)": trained(width, DDP(exact=True)),
        }
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(rounds + 1):  # the first is not counted
            for name, loop in loops.items():
                processes.barrier()
                began = time.perf_counter()
                loop()
                processes.barrier()
                times[name].append((time.perf_counter() - began) / BATCHES)
        base = times["torch's DDP"][1:]
        if processes.is_main:
            for name, taken in times.items():
                ratios = [one / other for one, other in zip(taken[1:], base, strict=True)]
                step = 1e3 * statistics.median(taken[1:])
                ratio = statistics.median(ratios)
                print(f"width {width}: {name:16} {step:6.2f} ms a step, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
