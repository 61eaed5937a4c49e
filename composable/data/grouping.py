"""Several batches of a loader as one: the batches of one optimizer step."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import attrs

__all__ = ["BatchGroup", "batches_of", "grouped"]


@attrs.frozen(eq=False)
class BatchGroup:
    """The batches of one step, in the order of the loader.

    It has neither an input nor a target: its batches have, and may differ in their sizes and
    shapes.

    Args:
        batches: The batches.
        loss_fns: The loss of each, or None where it is that of the step.
    """

    batches: tuple[Any, ...]
    loss_fns: tuple[Any, ...]

    def __getitem__(self, key: object) -> Any:
        raise ValueError(
            f"batch[{key!r}] is not defined: with accumulate_batches, the batch of a step is a "
            f"group of {len(self.batches)} batches. Read batch.batches, or act at "
            "AFTER_DATALOADER or BEFORE_TRAIN_BATCH, which fire for each of them."
        )


def grouped(batches: Iterable[Any], count: int) -> Iterator[BatchGroup]:
    """Group `count` batches at a time; the last group may have fewer.

    Example:
        >>> from composable.data.grouping import grouped
        >>> [group.batches for group in grouped("abcde", 2)]
        [('a', 'b'), ('c', 'd'), ('e',)]
    """
    remaining = iter(batches)
    while group := tuple(islice(remaining, count)):
        yield BatchGroup(group, (None,) * len(group))


def batches_of(batch: Any) -> tuple[Any, ...]:
    """Return the batches of a group, or the batch alone.

    Example:
        >>> from composable.data.grouping import BatchGroup, batches_of
        >>> batches_of(BatchGroup(("a", "b"), (None, None))), batches_of("c")
        (('a', 'b'), ('c',))
    """
    return batch.batches if type(batch) is BatchGroup else (batch,)
