"""Several batches as one: all batches of an optimizer step, or the shards of a global batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor

from composable.batches.spec import BatchSpec
from composable.core.event import Event
from composable.core.state import State
from composable.distributed.shards import Shards, TreeSum, all_reduce_exactly


class BatchPart(NamedTuple):
    """A batch of a group."""

    number: int
    """Its number in the step or in the global batch, on which its random numbers depend."""
    batch: Any
    loss_fn: Any = None
    """Its loss, or None for the step's."""
    empty: bool = False
    """Whether it has no example, and the weight 0."""


@attrs.frozen(eq=False)
class BatchGroup:
    """The batches of one step, in the order of the loader.

    It has neither an input nor a target: its batches have, and may differ in their sizes and
    shapes.

    Args:
        batches: The batches.
        loss_fns: The loss of each, or None where it is the step's. Default: none.
        empty: Whether each has no example, and the weight 0. Default: none.
    """

    batches: tuple[Any, ...]
    loss_fns: tuple[Any, ...] = attrs.Factory(lambda self: (None,) * len(self.batches), True)
    empty: tuple[bool, ...] = attrs.Factory(lambda self: (False,) * len(self.batches), True)

    @property
    def numbers(self) -> Iterable[int]:
        """The number of each batch in the step."""
        return range(len(self.batches))

    @property
    def parts(self) -> list[BatchPart]:
        """The batches, each with what belongs to it."""
        return list(map(BatchPart, self.numbers, self.batches, self.loss_fns, self.empty))

    def __getitem__(self, key: object) -> Any:
        raise ValueError(
            f"batch[{key!r}] is not defined: with accumulate_batches, and with several processes, "
            f"the batch of a step is a group, here of {len(self.batches)}. Read batch.batches, or "
            "act at AFTER_DATALOADER or BEFORE_TRAIN_BATCH, which fire for each of them."
        )


@attrs.frozen
class Examples:
    """Numbers of examples of a global batch, as it was loaded."""

    own: int
    """The number of this process."""
    all: int
    """The sum over all processes."""


@attrs.frozen(eq=False)
class ShardedBatch(BatchGroup):
    """The shards of a global batch that this process computes.

    With several batches in a step, each shard is a group: its parts of all of them.
    """

    shards: Shards = attrs.field(kw_only=True)
    examples: Examples | None = attrs.field(default=None, kw_only=True)

    @property
    def numbers(self) -> Iterable[int]:
        """The number of each shard in the global batch."""
        return self.shards.own


def grouped(batches: Iterable[Any], count: int) -> Iterator[BatchGroup]:
    """Group `count` batches at a time; the last group may have fewer.

    Example:
        >>> from composable.data.grouping import grouped
        >>> [group.batches for group in grouped("abcde", 2)]
        [('a', 'b'), ('c', 'd'), ('e',)]
    """
    remaining = iter(batches)
    while group := tuple(islice(remaining, count)):
        yield BatchGroup(group)


def is_group(batch: Any) -> bool:
    """Return whether the batch of a step consists of several, or of shards."""
    return isinstance(batch, BatchGroup)


def parts_of(batch: Any) -> list[BatchPart]:
    """Return the batches of a group; any other batch is its only part.

    Example:
        >>> from composable.data.grouping import BatchGroup, parts_of
        >>> [part.batch for part in parts_of(BatchGroup(("a", "b")))]
        ['a', 'b']
        >>> parts_of("c")
        [BatchPart(number=0, batch='c', loss_fn=None, empty=False)]
    """
    return batch.parts if isinstance(batch, BatchGroup) else [BatchPart(0, batch)]


def shards_in(batch: Any) -> list[BatchPart]:
    """Return the shards of a global batch that this process has; any other batch is one shard."""
    return batch.parts if isinstance(batch, ShardedBatch) else [BatchPart(0, batch)]


def batches_of(batch: Any) -> tuple[Any, ...]:
    """Return the batches of a group, groups within it included, or the batch alone.

    Example:
        >>> from composable.data.grouping import BatchGroup, batches_of
        >>> batches_of(BatchGroup(("a", "b"))), batches_of("c")
        (('a', 'b'), ('c',))
    """
    if not isinstance(batch, BatchGroup):
        return (batch,)
    return tuple(one for part in batch.batches for one in batches_of(part))


def each_batch(fire: Callable[[Event, State], State]) -> Callable[[Event, State], State]:
    """Fire an event for each batch of a group, with its random numbers and its loss."""

    def firing(event: Event, state: State) -> State:
        group, key, own = state.batch, state.key, state.loss_fn
        if not isinstance(group, BatchGroup):
            return fire(event, state)
        done = []
        for number, batch, loss_fn, _ in group.parts:
            changes = {"batch": batch, "loss_fn": loss_fn or own}
            state = firing(event, state.evolve_unchecked(**changes, key=key.of_batch(number)))
            done.append((state.batch, None if state.loss_fn is own else state.loss_fn))
        batches, after = zip(*done, strict=True)
        group = attrs.evolve(group, batches=batches, loss_fns=after)
        return state.evolve_unchecked(batch=group, loss_fn=own, key=key)

    return firing


def mean_over_shards(values: Sequence[Mapping[str, Tensor]], batch: Any) -> dict[str, Tensor]:
    """Return the mean of tensors over the shards of a global batch on all processes.

    Every process gets the same bits.

    Args:
        values: The tensors of each shard of this process, by name.
        batch: The global batch, or any other, which has one value.
    """
    if not isinstance(batch, ShardedBatch):
        return dict(values[0])
    total = TreeSum()
    for value in values:
        total.add([torch.cat([tensor.double().reshape(-1) for tensor in value.values()])])
    mean = all_reduce_exactly(total.value[0], batch.shards.processes) / batch.shards.count
    parts = mean.split_with_sizes([tensor.numel() for tensor in values[0].values()])
    return {
        name: part.view(tensor.shape).to(tensor.dtype)
        for (name, tensor), part in zip(values[0].items(), parts, strict=True)
    }


def total_weight(batch: Any, weight: Callable[[Any], Any]) -> Any:
    """Return the sum of the weights of the batches of a group, or the weight of a batch.

    Example:
        >>> from composable.data.grouping import BatchGroup, total_weight
        >>> total_weight(BatchGroup(("abc", "d"), empty=(False, True)), len)
        3
    """
    if not isinstance(batch, BatchGroup):
        return weight(batch)
    return sum(total_weight(part.batch, weight) for part in batch.parts if not part.empty)


def split_into_shards(batch: Any, spec: BatchSpec, shards: Shards) -> tuple[list[Any], int]:
    """Split a global batch, and return the shards of this process and the number of examples."""
    examples = spec.count(batch)
    ends = [shards.bound(examples, i) for i in (*shards.own, shards.own.stop)]
    sizes = [end - start for start, end in zip([0, *ends], [*ends, examples], strict=True)]
    pieces = iter(spec.split(batch, [size for size in sizes if size]))
    if sizes[0]:
        next(pieces)
    first = [1, examples - 1] if examples > 1 else [1]
    own = [next(pieces) if size else spec.split(batch, first)[0] for size in sizes[1:-1]]
    return own, examples


def shards_of(
    batches: Iterable[tuple[list[Any], int]],
    shards: Shards,
    count: int = 1,
    *,
    numbered_as: Shards | None = None,
) -> Iterator[ShardedBatch]:
    """Join the shards of this process into the batch of a step.

    Args:
        batches: The shards of this process and the number of examples, of each batch.
        shards: How those batches are divided.
        count: Number of batches in a step.
        numbered_as: The shards of the step. Default: `shards`.
    """
    remaining = iter(batches)
    while step := list(islice(remaining, count)):
        owns = [own for own, _ in step]
        empties = [[size == 0 for size in shards.sizes(examples)] for _, examples in step]
        parts, empty = owns[0], empties[0]
        if count > 1:
            groups = list(zip(*empties, strict=True))
            parts = [
                BatchGroup(batches, empty=group)
                for batches, group in zip(zip(*owns, strict=True), groups, strict=True)
            ]
            empty = list(map(all, groups))
        numbered = shards if numbered_as is None else numbered_as
        yield ShardedBatch(tuple(parts), empty=tuple(empty), shards=numbered)
