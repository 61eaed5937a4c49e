"""Global batches that do not depend on the number of processes."""

from collections.abc import Callable, Iterator, Sequence, Sized

import attrs
import torch
from torch import Tensor
from torch.utils.data import Sampler

from composable._support.checks import check_count, check_flag, check_one_of
from composable.core.key import Key, as_key
from composable.data.fetching import SharedEpoch
from composable.data.permutation import permute

_BLOCK = 2**16
"""The number of examples whose indices are computed at a time."""
_LARGEST_STORED = 2**22
"""The number of examples up to which the order of an epoch is stored; beyond, it is computed."""


def _length(dataset: Sized | int) -> int:
    if isinstance(dataset, int) and not isinstance(dataset, bool):
        return dataset
    try:
        return len(dataset)  # type: ignore[arg-type]  # a bool has none
    except TypeError:
        raise TypeError(
            f"dataset={dataset!r} must be a dataset that has a length, or its length."
        ) from None


@attrs.define(eq=False, repr=False, slots=False)
class GlobalBatchSampler(Sampler[list[int]]):
    """A batch sampler whose global batches depend only on the seed and the epoch.

    Process `rank` of `world_size` gets its part of every global batch: the concatenation of the
    parts, in the order of the ranks, is the global batch. Iteration can start at any batch. The
    order of more than 2**22 examples is computed as it is needed, and takes no memory.

    Args:
        dataset: The dataset to sample from, or its length.
        batch_size: Number of examples in a global batch: a multiple of `world_size`.
        seed: The seed of the order, or its `Key`.
        shuffle: Draw a new order for each epoch; otherwise use the order of the dataset.
        last_batch: How to handle an incomplete last batch: "keep" yields it, in parts whose sizes
            differ by at most one example; "drop" drops it; "pad" fills it with the first examples
            of the epoch.
        rank: The rank of this process, from 0.
        world_size: Number of processes.

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

    length: int = attrs.field(alias="dataset", converter=_length)
    batch_size: int = attrs.field(kw_only=True)
    key: Key = attrs.field(alias="seed", converter=as_key, kw_only=True)
    shuffle: bool = attrs.field(default=True, kw_only=True)
    last_batch: str = attrs.field(default="keep", kw_only=True)
    rank: int = attrs.field(default=0, kw_only=True)
    world_size: int = attrs.field(default=1, kw_only=True)
    _epoch: SharedEpoch = attrs.field(factory=SharedEpoch, init=False)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._epoch.set(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the batches in progress, or else the epoch that was set."""
        return self._epoch.current()

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (rest > 0 and self.last_batch != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches_from(0)

    def batches_from(self, start: int) -> Iterator[list[int]]:
        """Yield this process's part of every batch of the epoch, starting at batch `start`."""
        size, choose, total = self.batch_size, self._order(), self.total
        block = max(_BLOCK // size, 1) * size
        for first in range(start * size, total, block):
            positions = torch.arange(first, min(first + block, total))
            for chosen in torch.split(choose(positions), size):
                parts = (len(chosen) * i // self.world_size for i in (self.rank, self.rank + 1))
                yield chosen[slice(*parts)].tolist()

    @property
    def total(self) -> int:
        """The number of examples of the batches of an epoch."""
        total = len(self) * self.batch_size
        return min(total, self.length) if self.last_batch == "keep" else total

    def _order(self) -> Callable[[Tensor], Tensor]:
        """Return the function from positions in the epoch to indices.

        Beyond the length, which "pad" reaches, the epoch is repeated.
        """
        key = self.key.fold("order", self.epoch)
        if not self.shuffle:
            return lambda positions: positions % self.length
        if self.length > _LARGEST_STORED:
            return lambda positions: permute(positions % self.length, self.length, key)
        stored = torch.randperm(self.length, generator=key.generator())
        return lambda positions: stored[positions % self.length]

    def __attrs_post_init__(self) -> None:
        check_flag("shuffle", self.shuffle)
        counts = {"batch_size": self.batch_size, "world_size": self.world_size}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive integer.")
        if self.length < 1:
            raise ValueError(f"dataset has {self.length} examples: pass a non-empty dataset.")
        check_one_of("last_batch", self.last_batch, _LAST)
        check_count("rank", self.rank)
        if self.rank not in range(self.world_size):
            raise ValueError(
                f"rank={self.rank!r} must be between 0 and {self.world_size - 1}, because "
                f"world_size={self.world_size}."
            )
        if self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} must be a multiple of world_size={self.world_size}: "
                "it is the size of a global batch."
            )
        rest = self.length % self.batch_size
        if self.last_batch == "keep" and 0 < rest < self.world_size:
            raise ValueError(
                f"last_batch='keep' requires at least one example per process, but the last batch "
                f"has {rest} examples for {self.world_size} processes: use 'drop' or 'pad'."
            )


_LAST: Sequence[str] = ("keep", "drop", "pad")
