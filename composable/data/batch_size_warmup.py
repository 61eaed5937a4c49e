"""Global batches that grow in the course of training."""

from collections.abc import Iterator

import attrs
import torch

from composable._support.checks import check_count, check_order
from composable.core.time import HasTime
from composable.data.sampler import GlobalBatchSampler
from composable.functional import warmed_up_batch_size


@attrs.define(eq=False, repr=False, slots=False)
class BatchSizeWarmupSampler(GlobalBatchSampler):
    """A batch sampler whose batches grow: `functional.warmed_up_batch_size` is their schedule.

    The order of the examples is the same as in `GlobalBatchSampler` with the same seed. The size of
    a batch depends on the number of examples before it alone, over all epochs, so that a run
    resumes at any batch. The number of batches depends on the epoch, so there is no `len` while
    batches grow: give durations in samples, such as `max_duration="10000sp"`.

    Args:
        dataset: The dataset to sample from, or its length.
        batch_size: Number of examples in a global batch after the warm-up.
        min_batch_size: Number of examples in a global batch at the start.
        duration: Number of examples of the warm-up. 0 for no warm-up.
        step_size: Number of examples by which the batch grows at a time. Like both sizes, it is a
            multiple of `world_size`; `world_size` by default.
        seed: The seed of the order, or its `Key`.
        shuffle: Draw a new order for each epoch; otherwise use the order of the dataset.
        last_batch: How to handle an incomplete last batch: see `GlobalBatchSampler`.
        rank: The rank of this process, from 0.
        world_size: Number of processes.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or while iterating: a process would get no example
            of the last batch.

    Example:
        >>> from composable.data import BatchSizeWarmupSampler
        >>> sampler = BatchSizeWarmupSampler(
        ...     10, batch_size=4, min_batch_size=1, duration=6, seed=17, shuffle=False
        ... )
        >>> list(sampler)
        [[0], [1], [2, 3], [4, 5, 6], [7, 8, 9]]
        >>> sampler.set_epoch(1)
        >>> [len(batch) for batch in sampler]
        [4, 4, 2]
    """

    min_batch_size: int = attrs.field(kw_only=True)
    duration: int = attrs.field(kw_only=True)
    step_size: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.step_size is None:
            self.step_size = self.world_size
        check_count("min_batch_size", self.min_batch_size, 1)
        check_count("duration", self.duration)
        check_count("step_size", self.step_size, 1)
        check_order("min_batch_size", self.min_batch_size, "batch_size", self.batch_size)
        sizes = {"min_batch_size": self.min_batch_size, "step_size": self.step_size}
        for name, value in sizes.items():
            if value % self.world_size:
                raise ValueError(
                    f"{name}={value} must be a multiple of world_size={self.world_size}: it is the "
                    "size of a global batch."
                )

    def size_after(self, samples: int) -> int:
        """Return the size of the global batch after a number of examples."""
        return warmed_up_batch_size(
            samples,
            duration=self.duration,
            min_batch_size=self.min_batch_size,
            max_batch_size=self.batch_size,
            step_size=self.step_size or self.world_size,
        )

    def size_at(self, clock: HasTime) -> int:
        """Return the size of the next global batch at the time of a clock.

        A smaller last batch of an epoch counts as a whole one.
        """
        now = clock.timestamp
        return self.size_after(now.epoch * self.length + now.sample_in_epoch)

    def __len__(self) -> int:
        if self.min_batch_size < self.batch_size and self.duration:
            raise TypeError("the number of batches of an epoch varies while batches grow.")
        return super().__len__()

    def batches_from(self, start: int) -> Iterator[list[int]]:
        """Yield this process's part of every batch of the epoch, starting at batch `start`."""
        choose, earlier = self._order(), self.epoch * self.length
        for number, (first, size) in enumerate(self._bounds(earlier)):
            if number < start:
                continue
            parts = [size * i // self.world_size for i in (self.rank, self.rank + 1)]
            positions = torch.arange(first, first + size)[slice(*parts)]
            yield choose(positions).tolist()

    def _bounds(self, earlier: int) -> Iterator[tuple[int, int]]:
        """Yield the first position and the size of each global batch of an epoch."""
        first = 0
        while first < self.length:
            size = self.size_after(earlier + first)
            rest = self.length - first
            if size > rest and self.last_batch == "drop":
                return
            if size > rest and self.last_batch == "keep":
                size = rest
            if size < self.world_size:
                raise ValueError(
                    f"last_batch='keep' requires at least one example per process, but the last "
                    f"batch of epoch {self.epoch} has {size} examples for {self.world_size} "
                    "processes: use 'drop' or 'pad'."
                )
            yield first, size
            first += size
