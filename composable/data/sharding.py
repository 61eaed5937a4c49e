"""Divide the batches of a loader among processes."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from torch.utils.data import DataLoader

from composable.core.key import Key
from composable.data.fetching import is_map_style
from composable.data.order import seeded_batches
from composable.data.sampler import GlobalBatchSampler
from composable.distributed.processes import Processes
from composable.distributed.shards import Shards

__all__ = ["IndexShards", "is_divided", "numbered_batches"]


class IndexShards:
    """Splits the indices of global batches into the shards of a process, before they are fetched.

    Every process draws the same order, and fetches only its own examples. The random numbers of a
    fetch are those of its shard.

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
        """Join fetched shards into those of each batch, with its number of examples."""
        own: list[Any] = []
        for one in fetched:
            own.append(one)
            if len(own) == len(self.shards.own):
                yield own, self._sizes.popleft()
                own = []


def is_divided(loader: Any, processes: int) -> bool:
    """Return whether a loader is known to yield this process's part of the data only.

    Args:
        loader: The loader.
        processes: Number of processes.
    """
    if not isinstance(loader, DataLoader):
        return False
    if getattr(loader.dataset, "_distributed", None) is not None:  # datasets.distributed
        return True
    samplers = [loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", 0)]
    return any(
        (isinstance(one, GlobalBatchSampler) and one.world_size == processes > 1)
        or getattr(one, "num_replicas", None) == processes
        for one in samplers
    )


def numbered_batches(
    loader: Any, key: Key, processes: Processes | None = None
) -> Iterator[tuple[int, Any]]:
    """Iterate over the batches of an evaluation, with their numbers.

    Each of several processes gets whole batches, in turn: so the values of a batch are those that
    one process computes.

    Args:
        loader: The loader of the evaluation.
        key: The key of its order.
        processes: The processes that share the evaluation.

    Example:
        >>> from composable import Key
        >>> from composable.data.sharding import numbered_batches
        >>> from composable.distributed import Processes
        >>> list(numbered_batches("abcde", Key(0), Processes(rank=1, size=2)))
        [(1, 'b'), (3, 'd')]
    """
    if processes is None or not processes.several:
        return enumerate(seeded_batches(loader, key, epoch=0))
    rank, size = processes.rank, processes.size
    if not is_map_style(loader):
        return islice(enumerate(seeded_batches(loader, key, epoch=0)), rank, None, size)
    number = count()

    def own(indices: Any) -> list[tuple[int, Any]]:
        return [(0, indices)] if next(number) % size == rank else []

    return zip(count(rank, size), seeded_batches(loader, key, epoch=0, parts=own))
