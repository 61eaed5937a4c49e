"""Divide the batches of a loader among processes."""

import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from composable.batches.spec import BatchSpec
from composable.core.key import Key
from composable.data.digest import digest_of
from composable.data.fetching import is_map_style
from composable.data.grouping import split_into_shards
from composable.data.order import seeded_batches
from composable.data.sampler import GlobalBatchSampler
from composable.data.stream_parts import is_local_stream
from composable.distributed.processes import Processes
from composable.distributed.shards import Shards
from composable.utils.reproducibility import seed_context


class IndexShards:
    """Splits the indices of global batches into the shards of a process, before they are fetched.

    Every process draws the same order, and fetches only its examples. The random numbers of a fetch
    depend on its shard.

    Args:
        shards: The shards of the run.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self._sizes: deque[int] = deque()

    def __call__(self, indices: Any) -> Iterable[tuple[int, Any]]:
        """Return the shards of this process, with their numbers."""
        listed = indices if isinstance(indices, (list, tuple)) else list(indices)
        self._sizes.append(len(listed))
        return zip(self.shards.own, self.shards.parts(listed), strict=True)

    def joined(self, fetched: Iterator[Any]) -> Iterator[tuple[list[Any], int]]:
        """Join fetched shards to the shards of each batch, with its number of examples."""
        own: list[Any] = []
        for one in fetched:
            own.append(one)
            if len(own) == len(self.shards.own):
                yield own, self._sizes.popleft()
                own = []


def is_local(loader: Any, processes: int) -> bool:
    """Return whether a loader is known to yield this process's part of the data only.

    Args:
        loader: The loader.
        processes: Number of processes.
    """
    if not isinstance(loader, DataLoader):
        return False
    if is_local_stream(loader):
        return True
    samplers = [loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", 0)]
    return any(
        (isinstance(sampler, GlobalBatchSampler) and sampler.world_size == processes > 1)
        or getattr(sampler, "num_replicas", None) == processes
        for sampler in samplers
    )


def numbered_batches(
    loader: Any,
    key: Key,
    processes: Processes | None = None,
    stop: int | None = None,
    *,
    at_least_one: bool = False,
) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over the batches of an evaluation, with their numbers, and whether each counts.

    Each of several processes gets whole batches, in turn: so the values of a batch are those that
    one process computes. Of a loader that is already divided, each gets all that it has.

    Args:
        loader: The loader of the evaluation.
        key: The key of its order.
        processes: The processes that share the evaluation.
        stop: Number of batches of the loader after which it ends. Default: all.
        at_least_one: Give the first batch to a process that has none. It does not count there.

    Example:
        >>> from composable import Key
        >>> from composable.data.sharding import numbered_batches
        >>> from composable.distributed import Processes
        >>> list(numbered_batches("abcde", Key(0), Processes(rank=1, size=2)))
        [(1, 'b', True), (3, 'd', True)]
    """
    rank, size = (0, 1) if processes is None else (processes.rank, processes.size)
    own = _own_batches(loader, key, rank, size, stop)
    if not (at_least_one and rank):
        return own
    first = next(own, None)
    if first is not None:
        return chain([first], own)
    return ((i, batch, False) for i, batch, _ in islice(_own_batches(loader, key, 0, 1), 1))


def _own_batches(
    loader: Any, key: Key, rank: int, size: int, stop: int | None = None
) -> Iterator[tuple[int, Any, bool]]:
    epoch: Any = partial(seeded_batches, loader, key, epoch=0, stop=stop)
    if size > 1 and is_local(loader, size):
        batches = epoch()
        return ((i * size + rank, batch, True) for i, batch in enumerate(batches))
    if not is_map_style(loader):
        batches = epoch()
        return ((i, batch, True) for i, batch in enumerate(batches) if i % size == rank)
    number = count()

    def own(indices: Any) -> list[tuple[int, Any]]:
        return [(0, indices)] if next(number) % size == rank else []

    fetched = epoch(parts=own)
    return ((i, batch, True) for i, batch in zip(count(rank, size), fetched, strict=False))


def batches_in_turn(loader: Any, key: Key, processes: Processes) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over whole batches like `numbered_batches`, equally many on every process.

    A process that has none of the last batches gets another one, which does not count.
    """
    if is_local(loader, processes.size):
        yield from numbered_batches(loader, key, processes)
        return
    numbered = enumerate(seeded_batches(loader, key, epoch=0))
    while turn := list(islice(numbered, processes.size)):
        counts = processes.rank < len(turn)
        yield *turn[processes.rank if counts else 0], counts


def divided_batches(
    loader: Any, key: Key, processes: Processes, spec: BatchSpec, stop: int | None = None
) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over this process's part of every batch of an evaluation.

    All processes get equally many: a shard without an example of a batch gets the first example,
    which does not count.

    Args:
        loader: The loader of the evaluation.
        key: The key of its order.
        processes: The processes that share the evaluation.
        spec: What the examples of a batch are.
        stop: Number of batches of the loader after which it ends. Default: all.
    """
    if is_local(loader, processes.size):
        yield from numbered_batches(loader, key, processes, stop)
        return
    shards = Shards(processes.size, processes)
    for i, batch in enumerate(seeded_batches(loader, key, epoch=0, stop=stop)):
        (own,), examples = split_into_shards(batch, spec, shards)
        yield i, own, shards.sizes(examples) != [0]


def describe_dataset(loader: Any) -> dict[str, Any]:
    """Describe the dataset that is read by index: its length, and a digest of three examples.

    No random state is changed: a dataset that has a generator is described by its length.

    Args:
        loader: The loader. Another one than a `DataLoader` of a map-style dataset has no entries.

    Example:
        >>> from composable.data.sharding import describe_dataset
        >>> loader = torch.utils.data.DataLoader(list(range(10)), shuffle=True)
        >>> describe_dataset(loader)["examples"]
        10
    """
    found: dict[str, Any] = {}
    if not is_map_style(loader):
        return found
    with suppress(Exception), seed_context(0):  # errors are raised when training reads the data
        data = loader.dataset
        found["examples"] = count = len(data)
        if not _has_generator(data, depth=3):
            chosen = [data[i] for i in sorted({0, count // 2, count - 1})]
            found["digest"] = digest_of(loader.collate_fn(chosen))
    return found


def _has_generator(value: Any, depth: int) -> bool:
    """Return whether an object has a random number generator, such as one of its transforms."""
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    if isinstance(value, (random.Random, torch.Generator, *drawn)):
        return True
    parts = getattr(value, "__dict__", value if isinstance(value, (list, tuple, dict)) else ())
    some = islice(parts.values() if isinstance(parts, dict) else parts, 32)  # not a list of data
    return depth > 0 and any(_has_generator(one, depth - 1) for one in some)
