"""The cost of a training step with channels-last, bfloat16 and torch.compile, on this machine.

    python benchmarks/step_costs.py

A ResNet-8 trains on batches of 64 images of 32 x 32. In each process, the kinds of steps take
turns, in CPU seconds of one thread; the cost of a kind is the 25th percentile of its rounds.
Compilation is not part of it. The interval is of the mean log ratio over the processes.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

import residual_net  # noqa: E402 (a script of examples/)

PLAIN = "plain"
PROCESSES, ROUNDS, STEPS, BATCH = 5, 12, 3, 64


def step_of(kind: str) -> Callable[[], None]:
    """Return a function that trains a step."""
    torch.manual_seed(0)
    model = residual_net.residual_net(0)
    images, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    if kind == "channels last":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model) if kind == "torch.compile" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16 autocast"):
            loss = cross_entropy(compiled(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


KINDS = ("channels last", "bfloat16 autocast", "torch.compile")


def costs(kinds: Sequence[str]) -> dict[str, float]:
    """Return the seconds of a step of each kind, in this process."""
    torch.set_num_threads(1)
    steps = {kind: step_of(kind) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for step in steps.values():
        for _ in range(STEPS):
            step()
    for at in range(ROUNDS):
        for kind in [*kinds[at % len(kinds) :], *kinds[: at % len(kinds)]]:
            begun = time.process_time()
            for _ in range(STEPS):
                steps[kind]()
            seconds[kind].append((time.process_time() - begun) / STEPS)
    return {kind: statistics.quantiles(each, n=4)[0] for kind, each in seconds.items()}


def measure(processes: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the ratios to a plain step, with their 95 % intervals over the processes."""
    found = []
    for _ in range(processes):  # one after the other
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found.append(pool.submit(costs, [PLAIN, *kinds]).result())
    rows = []
    for kind in kinds:
        logs = [math.log(one[kind] / one[PLAIN]) for one in found]
        half = stats.t.ppf(0.975, processes - 1) * statistics.stdev(logs) / processes**0.5
        ends = (statistics.fmean(logs) + sign * half for sign in (0, -1, 1))
        rows.append([kind, *map(math.exp, ends)])
    device = platform.processor() or platform.machine()
    plain = 1e3 * statistics.fmean(one[PLAIN] for one in found)
    return {"processes": processes, "milliseconds": plain, "device": device, "ratios": rows}


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    print(json.dumps(measure(options.processes, options.kinds), indent=1))


if __name__ == "__main__":
    main()
