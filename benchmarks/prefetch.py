"""What copying the next batch during a step saves on a GPU.

    python benchmarks/prefetch.py                    # needs a CUDA device
    python benchmarks/prefetch.py --size 1024        # examples in a batch

A step multiplies matrices for about as long as `--step` copies of a batch take. Four ways to move
the batches are timed in turns, with a host that runs ahead of the GPU and with one that reads a
value in each step:

    blocking      batch.to(device)
    non-blocking  from pinned memory, on the stream of the step
    stream        from pinned memory, on a stream of its own (evaluations and predictions)
    ahead         likewise, started after the step was launched (training)
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from composable.data.prefetch import CopyStream, Prefetcher

Mode = Callable[[list[Any]], Iterator[Any]]


def blocking(batches: list[Any]) -> Iterator[Any]:
    """Copy each batch when it is due, and wait."""
    return (batch.to("cuda") for batch in batches)


def non_blocking(batches: list[Any]) -> Iterator[Any]:
    """Copy each batch when it is due, on the stream of the step."""
    return (batch.to("cuda", non_blocking=True) for batch in batches)


def stream(batches: list[Any]) -> Iterator[Any]:
    """Copy each batch on a stream of its own."""
    return Prefetcher(batches, CopyStream(torch.device("cuda")))


MODES: dict[str, Mode] = {
    "blocking": blocking,
    "non-blocking": non_blocking,
    "stream": stream,
    "ahead": stream,
}


def run(mode: str, batches: list[Any], weight: torch.Tensor, products: int, reads: bool) -> float:
    """Return the milliseconds of a step."""
    moved = MODES[mode](batches)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in moved:
        result = batch[: len(weight)] @ weight
        for _ in range(products):
            result = result @ weight
        if mode == "ahead" and isinstance(moved, Prefetcher):
            moved.fetch()
        if reads:
            result.sum().item()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / len(batches)


def products_for(milliseconds: float, weight: torch.Tensor) -> int:
    """Return how many matrix products take so long."""
    result = weight @ weight
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        result = result @ weight
    torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / 50
    return max(round(milliseconds / each), 1)


def main() -> None:
    """Print a line of JSON for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="images of 3x224x224 in a batch")
    parser.add_argument("--step", type=float, default=2.0, help="length of a step, in copies")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device: nothing can overlap, and nothing is measured.")
    features = 3 * 224 * 224
    pinned = [torch.randn(arguments.size, features).pin_memory() for _ in range(4)]
    copied = statistics.median(_copy_time(batch) for batch in pinned * 3)
    weight = torch.randn(features // 64, features // 64, device="cuda") / 50
    host = [batch.view(-1, len(weight)) for batch in pinned] * (arguments.batches // 4)
    products = products_for(arguments.step * copied, weight)
    print(json.dumps({"device": torch.cuda.get_device_name(), "copy_ms": round(copied, 2)}))
    for reads in (False, True):
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(arguments.repeats):
            for mode, taken in times.items():
                given = [batch.clone() for batch in host] if mode == "blocking" else host
                taken.append(run(mode, given, weight, products, reads))
        figures = {mode: round(statistics.median(taken), 2) for mode, taken in times.items()}
        print(json.dumps({"host_reads_each_step": reads, "step_ms": figures}))


def _copy_time(batch: torch.Tensor) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
