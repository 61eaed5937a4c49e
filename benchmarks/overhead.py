"""What the Trainer costs above a well-written plain loop.

Both loops run in one process in alternating blocks of steps, on one thread, and are compared
block by block in CPU time of the thread, so that the machine's drift cancels. Repeat with

    python benchmarks/overhead.py            # all of it, a few minutes
    python benchmarks/overhead.py tiny       # one case: tiny, callbacks, methods, midsize, ...

The figures in docs/performance.md come from this script.
"""

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Callback, Event, Trainer
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.loggers import JSONLinesLogger

BLOCK = 50  # steps
Step = Callable[[], None]


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def midsize() -> nn.Module:
    layers = [
        nn.Linear(512, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    ]
    return nn.Sequential(*layers)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


class DoNothing(Callback):
    """A callback with an empty method for every event."""


for _event in Event:
    setattr(DoNothing, _event.value, lambda self, state, logger: None)


def optimizer_and_scheduler(model: nn.Module):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


class PlainLoop:
    """The loop that one would write."""

    def __init__(self, model: nn.Module, batches: list) -> None:
        self.model, self.batches = model, batches
        self.optimizer, self.scheduler = optimizer_and_scheduler(model)

    def run(self, steps: int) -> None:
        model, optimizer, scheduler = self.model, self.optimizer, self.scheduler
        for i in range(steps):
            inputs, targets = self.batches[i % len(self.batches)]
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


class Interleaved(list):
    """A loader that stops the clock between blocks to let the plain loop run one of its own."""

    def __init__(self, batches: list, other: PlainLoop, blocks: int) -> None:
        super().__init__(batches[i % len(batches)] for i in range(blocks * BLOCK))
        self.batches, self.other, self.blocks = batches, other, blocks
        self.ours: list[float] = []
        self.plain: list[float] = []

    def __iter__(self) -> Iterator:
        for _ in range(self.blocks):
            started = time.thread_time()
            for i in range(BLOCK):
                yield self.batches[i % len(self.batches)]
            between = time.thread_time()
            self.other.run(BLOCK)
            self.ours.append((between - started) / BLOCK)
            self.plain.append((time.thread_time() - between) / BLOCK)


class Stream:
    """Batches that may be drawn as they come, for all that the Trainer can tell."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator:
        return iter(self.batches)


def compare(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    blocks: int,
    *,
    wrap: Callable = lambda loader: loader,
    **options,
) -> dict:
    """Compare the Trainer with the plain loop: microseconds per step and their ratio."""
    torch.manual_seed(0)
    batches = [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(8)]
    model, twin = build(), build()
    twin.load_state_dict(model.state_dict())
    optimizer, scheduler = optimizer_and_scheduler(model)
    loader = Interleaved(batches, PlainLoop(twin, batches), blocks)
    trainer = Trainer(
        model,
        train_dataloader=wrap(loader),
        loss_fn=cross_entropy,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=True,
        max_duration="1ep",
        seed=17,
        progress_bar=False,
        **options,
    )
    trainer.fit()
    if not options:
        same = all(map(torch.equal, model.parameters(), twin.parameters()))
        if not same:
            raise SystemExit("the Trainer's weights differ from the plain loop's")
    warm = max(2, blocks // 10)
    ours, plain = loader.ours[warm:], loader.plain[warm:]
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "plain_us": round(1e6 * statistics.median(plain), 1),
        "above_us": round(1e6 * (statistics.median(ours) - statistics.median(plain)), 1),
    }


def run_tiny(blocks: int) -> dict:
    return compare(tiny, (32, 64), blocks)


def run_stream(blocks: int) -> dict:
    return compare(tiny, (32, 64), blocks, wrap=Stream)


def run_loggers(blocks: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        return compare(tiny, (32, 64), blocks, loggers=[JSONLinesLogger(path)])


def run_callbacks(blocks: int) -> dict:
    return compare(tiny, (32, 64), blocks, callbacks=[DoNothing() for _ in range(5)])


def run_methods(blocks: int) -> dict:
    return compare(
        convnet,
        (32, 1, 8, 8),
        blocks,
        algorithms=[
            MixUp(),
            LabelSmoothing(),
            BlurPool(),
            EMA("100ba"),
            SelectiveBackprop(start=0.0, end=1.0),
            GradientClipping("norm", 1.0),
        ],
    )


def run_midsize(blocks: int) -> dict:
    return compare(midsize, (256, 512), max(10, blocks // 6))


def run_same_cost(blocks: int) -> dict:
    """Compare a step with the plain loop at n = 10 and at n = 100,000, and measure the memory."""
    torch.manual_seed(0)
    batches = [(torch.randn(4, 8), torch.randint(10, (4,)))]
    model = nn.Linear(8, 10)
    other = PlainLoop(copy.deepcopy(model), batches)
    ratios: dict[int, list[float]] = {10: [], 100_000: []}
    memory: dict[int, float] = {}

    class Marks(list):
        def __iter__(self) -> Iterator:
            yield from batches * 10
            yield from self.measure(10)
            memory[10] = self.peak()
            yield from batches * 98_000
            yield from self.measure(100_000)
            memory[100_000] = self.peak()

        def measure(self, n: int) -> Iterator:
            for _ in range(40):
                started = time.thread_time()
                yield from batches * BLOCK
                between = time.thread_time()
                other.run(BLOCK)
                ratios[n].append((between - started) / (time.thread_time() - between))

        @staticmethod
        def peak() -> float:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    optimizer, scheduler = optimizer_and_scheduler(model)
    Trainer(
        model,
        train_dataloader=Marks(batches * (10 + 98_000 + 80 * BLOCK)),
        loss_fn=cross_entropy,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=True,
        max_duration="1ep",
        seed=0,
        progress_bar=False,
    ).fit()
    at_10, at_100_000 = (statistics.median(ratios[n]) for n in ratios)
    return {
        "x_plain_at_10": round(at_10, 3),
        "x_plain_at_100000": round(at_100_000, 3),
        "ratio": round(at_100_000 / at_10, 3),
        "peak_mb_at_2000": round(memory[10], 1),
        "peak_mb_at_102000": round(memory[100_000], 1),
    }


def run_imports(blocks: int) -> dict:
    """Import time above torch's, in processes of their own, with compiled files of Python.

    A collection of the garbage of importing torch would fall into the first import after it.
    """
    code = (
        "import gc, sys, time; import torch; gc.collect(); n = len(sys.modules); "
        "t = time.process_time(); "
        "from composable import Trainer; from composable.algorithms import MixUp; "
        "print(1000 * (time.process_time() - t), len(sys.modules) - n)"
    )
    with tempfile.TemporaryDirectory() as folder:
        own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        runs = [
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own
            )
            for _ in range(10)
        ]
    _, *read = runs  # the first one compiles
    times, modules = zip(*(map(float, run.stdout.split()) for run in read), strict=True)
    return {
        "cpu_ms_above_torch": round(statistics.median(times), 1),
        "modules": int(modules[0]),
    }


CASES = {
    "tiny": run_tiny,
    "stream": run_stream,
    "loggers": run_loggers,
    "callbacks": run_callbacks,
    "methods": run_methods,
    "midsize": run_midsize,
    "same_cost": run_same_cost,
    "imports": run_imports,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--blocks", type=int, default=120, help=f"blocks of {BLOCK} steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.cases or CASES:
        print(name, json.dumps(CASES[name](arguments.blocks)), flush=True)


if __name__ == "__main__":
    main()
