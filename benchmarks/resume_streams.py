"""What it costs to resume within an epoch: the time until the first batch, and reading a state.

    python benchmarks/resume_streams.py            # 2,000 batches of 32, resumed at 1,000
    python benchmarks/resume_streams.py --skip 100

An example takes about 5 microseconds. The figures in docs/data.md come from this script.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from composable.data import WorkerShard, read_loader_state, seeded_batches

BATCH = 32


class Stream(IterableDataset[Any]):
    """Numbers from 0 on, divided among workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.count, stride):
            yield torch.full((64,), float(i)).sin().cos()


class Stateful(Stream):
    """The same, with a state."""

    at, begin = 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        self.at, self.begin = self.begin, 0
        for i in range(first + self.at * stride, self.count, stride):
            self.at += 1
            yield torch.full((64,), float(i)).sin().cos()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of examples that were read."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start there."""
        self.begin = state["at"]


def transform(number: int) -> torch.Tensor:
    """Make an example."""
    return torch.full((64,), float(number)).sin().cos()


def loaders(count: int) -> dict[str, Callable[[], Any]]:
    """Return how each loader is built."""
    table = torch.randn(count, 64)

    def of(make: Callable[[], Any], workers: int) -> Callable[[], Any]:
        return lambda: DataLoader(make(), BATCH, num_workers=workers)

    rows: dict[str, Callable[[], Any]] = {}
    for workers in (0, 2):
        rows |= {
            f"map-style, {workers} workers": of(lambda: TensorDataset(table), workers),
            f"stream with a state, {workers} workers": of(lambda: Stateful(count), workers),
            f"stream without, {workers} workers": of(lambda: Stream(count), workers),
            f"WorkerShard of numbers, {workers} workers": of(
                lambda: WorkerShard(range(count), BATCH, transform), workers
            ),
        }
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return rows
    for workers in (0, 2):
        rows[f"StatefulDataLoader, {workers} workers"] = lambda workers=workers: StatefulDataLoader(
            Stateful(count), BATCH, num_workers=workers
        )
    return rows


def measure(make: Callable[[], Any], skip: int) -> dict[str, float]:
    """Return the milliseconds until the first batch, and the microseconds of reading a state."""
    loader = make()
    batches = seeded_batches(loader, 17, epoch=0)
    for _ in range(skip):
        next(batches)
    began = time.perf_counter()
    state = read_loader_state(loader)
    read = time.perf_counter() - began
    batches.close()
    first = {}
    for name, options in (
        ("start", {}),
        ("resume", {"skip": skip, "loader_state": state}),
    ):
        rest = seeded_batches(make(), 17, epoch=0, **options)  # type: ignore[arg-type]
        began = time.perf_counter()
        next(rest)
        first[name] = 1e3 * (time.perf_counter() - began)
        rest.close()  # type: ignore[attr-defined]
    return {**first, "state_us": 1e6 * read}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip", type=int, default=1000, help="batches before the resume")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'loader':36} {'start ms':>9} {'resume ms':>10} {'state us':>9}")
    for name, make in loaders(2 * arguments.skip * BATCH).items():
        runs = [measure(make, arguments.skip) for _ in range(arguments.repeats)]
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        values = (median["start"], median["resume"], median["state_us"])
        print("{:36} {:9.1f} {:10.1f} {:9.0f}".format(name, *values))


if __name__ == "__main__":
    main()
