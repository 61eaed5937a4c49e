"""Global batches, the same for any number of processes."""

from collections.abc import Iterator, Sequence, Sized

import torch
from torch.utils.data import Sampler

from composable.core.key import Key

__all__ = ["GlobalBatchSampler"]


class GlobalBatchSampler(Sampler[list[int]]):
    """A batch sampler whose global batches depend on the seed and the epoch alone.

    Process `rank` of `world_size` gets its part of every global batch: the parts of all of them,
    one after the other, are the global batch. It can begin at any batch.

    Args:
        dataset: What is indexed, or its length.
        batch_size: Examples in a global batch: a multiple of `world_size`.
        seed: What the order is derived from, or its `Key`.
        shuffle: Draw an order for each epoch, and not go through the data set from 0 on.
        last_batch: What becomes of a last batch that is too short: "keep" gives it as it is, with
            parts that differ by at most one example; "drop" leaves it out; "pad" fills it up
            with the first examples of the epoch.
        rank: Which process this is, from 0.
        world_size: How many there are.

    Raises:
        ValueError: An argument is out of range, or a process would get no example of the last
            batch.

    Example:
        >>> from composable.data import GlobalBatchSampler
        >>> list(GlobalBatchSampler(10, batch_size=4, seed=17, shuffle=False))
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        >>> second = GlobalBatchSampler(
        ...     10, batch_size=4, seed=17, shuffle=False, rank=1, world_size=2
        ... )
        >>> list(second)
        [[2, 3], [6, 7], [9]]
        >>> loader = torch.utils.data.DataLoader(range(10), batch_sampler=second)
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        batch_size: int,
        seed: int | Key,
        shuffle: bool = True,
        last_batch: str = "keep",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.batch_size = batch_size
        self.key = seed if isinstance(seed, Key) else Key(seed)
        self.shuffle = shuffle
        self.last_batch = last_batch
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self._check()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; `seeded_batches` and the Trainer do."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (rest > 0 and self.last_batch != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches_from(0)

    def batches_from(self, start: int) -> Iterator[list[int]]:
        """This process's part of every batch of the epoch from `start` on."""
        order = self.order()
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            if len(chosen) < self.batch_size and self.last_batch == "pad":
                # More than once around, where the data set is smaller than what is missing.
                around = torch.arange(self.batch_size - len(chosen)) % self.length
                chosen = torch.cat([chosen, order[around]])
            first, end = (len(chosen) * i // self.world_size for i in (self.rank, self.rank + 1))
            yield chosen[first:end].tolist()

    def order(self) -> torch.Tensor:
        """The indices of the epoch, in order."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = self.key.fold("order", self.epoch).generator()
        return torch.randperm(self.length, generator=generator)

    def _check(self) -> None:
        counts = {"batch_size": self.batch_size, "world_size": self.world_size}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer from 1 on.")
        if self.length < 1:
            raise ValueError(f"dataset has {self.length} examples: give one that has some.")
        if self.last_batch not in _LAST:
            raise ValueError(f"last_batch={self.last_batch!r} must be one of {_LAST}.")
        if self.rank not in range(self.world_size):
            raise ValueError(
                f"rank={self.rank!r} must be from 0 to {self.world_size - 1}, since world_size is "
                f"{self.world_size}."
            )
        if self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} is the size of a global batch, and can't be divided "
                f"by world_size={self.world_size}: give a multiple of it."
            )
        rest = self.length % self.batch_size
        if self.last_batch == "keep" and 0 < rest < self.world_size:
            raise ValueError(
                f"last_batch='keep' leaves a last batch of {rest} examples for "
                f"{self.world_size} processes: use 'drop' or 'pad'."
            )


_LAST: Sequence[str] = ("keep", "drop", "pad")
