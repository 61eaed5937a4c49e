"""The shards of a global batch, and sums of tensors over them."""

from collections.abc import Sequence
from typing import TypeVar

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.checks import check_count
from composable.distributed.processes import Processes

T = TypeVar("T")


@attrs.frozen
class Shards:
    """The equal parts of a global batch, and which of them this process computes.

    Random numbers are drawn, and batch statistics computed, for a shard. So a run depends on the
    number of shards, and not on the number of processes that compute them.

    Args:
        count: Number of shards, a multiple of the number of processes.
        processes: The processes of the run.

    Example:
        >>> from composable.distributed import Processes, Shards
        >>> shards = Shards(4, Processes(rank=1, size=2))
        >>> list(shards.own)
        [2, 3]
        >>> shards.parts("abcdefghij"), shards.sizes(10)
        (['fg', 'hij'], [2, 3])
    """

    count: int
    processes: Processes
    own: range = attrs.field(init=False, repr=False)
    """The numbers of the shards of this process."""

    @own.default
    def _own_of_rank(self) -> range:
        check_count("count", self.count, 1)
        if not isinstance(self.processes, Processes):
            raise TypeError(f"processes={self.processes!r} must be a Processes.")
        rank, size = self.processes.rank, self.processes.size
        return range(self.count * rank // size, self.count * (rank + 1) // size)

    @property
    def alone(self) -> "Shards":
        """The shards of this process as a separate batch."""
        return Shards(len(self.own), Processes())

    def sizes(self, examples: int) -> list[int]:
        """Return the number of examples in each shard of this process.

        Args:
            examples: Number of examples in the global batch.
        """
        return [self.bound(examples, i + 1) - self.bound(examples, i) for i in self.own]

    def parts(self, batch: Sequence[T]) -> list[Sequence[T]]:
        """Return the examples of each shard of this process.

        A shard without examples, of a batch with fewer examples than shards, gets the first one:
        every process computes a loss, and this shard's has the weight 0.
        """
        size = len(batch)
        slices = [slice(self.bound(size, i), self.bound(size, i + 1)) for i in self.own]
        return [batch[part] if part.start < part.stop else batch[:1] for part in slices]

    def bound(self, examples: int, shard: int) -> int:
        """Return the number of examples in the shards before a shard."""
        return examples * shard // self.count


# --- sums ---


class TreeSum:
    """A sum by a balanced binary tree, in which the order of additions is fixed.

    Consecutive parts are added in pairs, then the pairs, and so on, as soon as both are there. So
    the sum of `2**n` parts has the same bits if several processes add `2**m` of them each.

    Example:
        >>> from composable.distributed.shards import TreeSum
        >>> total = TreeSum()
        >>> for part in torch.arange(8.0):
        ...     total.add([part])
        >>> total.value
        [tensor(28.)]
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the next part, a list of tensors."""
        level, part = 0, list(tensors)
        while self._open and self._open[-1][0] == level:
            _, left = self._open.pop()
            level, part = level + 1, [a + b for a, b in zip(left, part, strict=True)]
        self._open.append((level, part))

    @property
    def value(self) -> list[Tensor]:
        """The sum of all parts."""
        *rest, (_, total) = self._open
        for _, left in reversed(rest):  # only if their number is not a power of two
            total = [a + b for a, b in zip(left, total, strict=True)]
        return total


def all_reduce_exactly(flat: Tensor, processes: Processes) -> Tensor:
    """Sum a tensor over the processes by a balanced binary tree.

    Each process sums a slice of the tensors of all. The traffic equals a ring all-reduce's, and the
    sum is bit-identical for every backend and, together with `TreeSum`, for every number of
    processes.

    Args:
        flat: A tensor of one dimension.
        processes: The processes of the run.
    """
    if not processes.several:
        return flat
    sent = torch.nn.functional.pad(flat, (0, -len(flat) % processes.size))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    total = TreeSum()
    for part in received.chunk(processes.size):
        total.add([part])
    whole = torch.empty_like(sent)
    dist.all_gather(list(whole.chunk(processes.size)), total.value[0])
    return whole[: len(flat)]
