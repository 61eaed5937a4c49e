"""What the callbacks that measure a run cost, at their default intervals.

Two equal runs alternate every ten steps on one thread, one of them with a callback, in CPU time
of the thread. The cost of a callback is the time spent in its methods and forward hooks, and in a
logger that keeps what it logs: per step, and as a share of the step, which takes about 20 ms where
nothing else runs. The ratio of the median steps of the two runs includes what the callback makes
the loop do at every step, and the noise of the machine. Repeat with

    python benchmarks/monitors.py               # all of them, about a minute
    python benchmarks/monitors.py noise norms   # some of them

The figures in docs/callbacks.md come from this script.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Callback, Event, State, Trainer
from composable.callbacks import (
    ActivationMonitor,
    CheckLoss,
    ComputeNorm,
    GradientNoise,
    ImageVisualizer,
    LRMonitor,
    MemoryMonitor,
    NaNMonitor,
    OptimizerMonitor,
    Printer,
    RuntimeEstimator,
    SpeedMonitor,
    SystemMonitor,
    TimeSplit,
)
from composable.core.callback import hooks_of
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger

BLOCK = 100  # steps: the longest interval
PART = 10  # steps of one run before it is the other's turn
ONCE = (Event.FIT_START, Event.FIT_END)

MONITORS: dict[str, Callable[[], Callback]] = {
    "activations": ActivationMonitor,
    "finite loss": CheckLoss,
    "norms of parameters": ComputeNorm,
    "noise": GradientNoise,
    "images": ImageVisualizer,
    "memory": MemoryMonitor,
    "rates": LRMonitor,
    "split": TimeSplit,
    "loss": NaNMonitor,
    "norms": OptimizerMonitor,
    "lines": lambda: Printer(stream=io.StringIO()),
    "time": RuntimeEstimator,
    "machine": SystemMonitor,
    "speed": SpeedMonitor,
    "speed and operations": lambda: SpeedMonitor(flops_per_batch=1e9),
}


class Timed:
    """The CPU seconds spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.thread_time() - began

        return timed


class Clock(Callback):
    """Notes the CPU time of the thread at the start of each batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def batch_start(self, state: State, logger: Logger) -> None:
        self.times.append(time.thread_time())

    def steps(self) -> list[float]:
        """Return how long each step of the last block took."""
        times, self.times = self.times, []
        return [after - before for before, after in pairwise(times)]


def transformer() -> nn.Module:
    """Build a transformer of four blocks and 0.8 million parameters in 50 tensors."""
    block = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(block, 4), nn.Flatten(), nn.Linear(16 * 128, 10))


def convnet() -> nn.Module:
    """Build a convolutional network for images of 32 x 32 pixels."""
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))


def build(examples: int, images: bool, *callbacks: Callback) -> tuple[Trainer, Clock]:
    torch.manual_seed(0)
    shape = (3, 32, 32) if images else (16, 128)
    batches = [(torch.randn(examples, *shape), torch.randint(10, (examples,))) for _ in range(4)]
    model = convnet() if images else transformer()
    model(batches[0][0])  # creates the parameters of the last layer
    clock = Clock()
    trainer = Trainer(
        model,
        train_dataloader=batches * (BLOCK // 4),
        loss_fn=cross_entropy,
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        callbacks=[clock, *callbacks],
        loggers=InMemoryLogger(),
        grad_accum=2,
        max_duration="1ba",
        seed=0,
        progress_bar=False,
    )
    trainer.fit()  # warms up
    return trainer, clock


def measure(name: str, examples: int, blocks: int) -> None:
    """Measure one callback, and print a row of the table."""
    monitor, inside = MONITORS[name](), Timed()
    label = type(monitor).__name__
    for event, hook in hooks_of(monitor).items():
        if event not in ONCE:
            setattr(monitor, event.value, inside(hook))
    if isinstance(monitor, ActivationMonitor):
        monitor._add = inside(monitor._add)  # called by the forward hooks
    images = isinstance(monitor, ImageVisualizer)
    with_it, without = build(examples, images, monitor), build(examples, images)
    inside.seconds, steps = 0.0, ([], [])
    for _ in range(blocks * BLOCK // PART):
        for found, (trainer, clock) in zip(steps, (with_it, without), strict=True):
            clock.times = []
            trainer.fit(duration=f"{PART}ba")
            found += clock.steps()
    cost, step = inside.seconds / (blocks * BLOCK), statistics.median(steps[1])
    ratio = statistics.median(steps[0]) / step
    print(
        f"{label:18} {name:22} {1e6 * cost:7.1f} us per step of {1e3 * step:4.1f} ms: "
        f"{100 * cost / step:5.2f} %;  ratio of the runs {ratio:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(MONITORS)}")
    parser.add_argument("--examples", type=int, default=16, help="in a batch, of 16 tokens each")
    parser.add_argument("--blocks", type=int, default=1, help=f"of {BLOCK} steps of each run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names or MONITORS:
        measure(name, options.examples, options.blocks)


if __name__ == "__main__":
    main()
