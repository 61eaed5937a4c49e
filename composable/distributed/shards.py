"""The shards of a global batch."""

from collections.abc import Sequence
from typing import TypeVar

import attrs

from composable.distributed.processes import Processes

__all__ = ["Shards"]

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
        rank, size = self.processes.rank, self.processes.size
        return range(self.count * rank // size, self.count * (rank + 1) // size)

    @property
    def alone(self) -> "Shards":
        """The shards of this process as those of a batch of its own."""
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
        every process computes a loss, and that of this shard has the weight 0.
        """
        size = len(batch)
        slices = [slice(self.bound(size, i), self.bound(size, i + 1)) for i in self.own]
        return [batch[one] if one.start < one.stop else batch[:1] for one in slices]

    def bound(self, examples: int, shard: int) -> int:
        """Return the number of examples in the shards before a shard."""
        return examples * shard // self.count
