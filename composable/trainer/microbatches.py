"""Microbatches: how a batch is split, and the gradients of the parts."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from typing_extensions import TypedDict

from composable.core.batch import microbatch_sizes
from composable.core.batch_spec import BatchSpec
from composable.core.event import Event
from composable.core.state import State
from composable.core.stateful import Size
from composable.data.grouping import BatchGroup, ShardedBatch, batches_of
from composable.engines.engine import Engine, Sums
from composable.engines.modules import Buffers
from composable.optim.stepping import zero_grad
from composable.trainer.guards import halve_microbatch

__all__ = [
    "Microbatches",
    "accumulate",
    "each_batch",
    "each_shard",
    "fit_memory",
    "reduce",
    "sum_gradients",
]


class MicrobatchesState(TypedDict):
    """The size that fits into memory, if it is searched for."""

    size: Size


@attrs.define(eq=False)
class Microbatches:
    """How a batch is split: into `count` microbatches, or into microbatches of `size` examples.

    Of the batches of a group, each is split.
    """

    count: int | None = None
    size: int | None = None
    auto: bool = False
    """Whether `size` is halved until a batch fits into memory."""
    groups: bool = False
    """Whether batches are groups of batches of the loader."""

    @property
    def split(self) -> bool:
        """Whether there may be several microbatches."""
        return bool(self.count or self.size or self.auto or self.groups)

    def of(self, state: State) -> list[tuple[Any, Any, bool]]:
        """Return the microbatches of a batch, the loss function of each, and whether it is empty.

        An empty one has the weight 0: see `ShardedBatch`.
        """
        group = state.batch
        if not isinstance(group, BatchGroup):
            group = BatchGroup((group,), (None,))
        return [
            (part, loss_fn or state.loss_fn, empty)
            for batch, loss_fn, empty in zip(
                group.batches, group.loss_fns, group.empty, strict=True
            )
            for part in self._parts(batch, state.batch_spec)
        ]

    def batch_numbers(self, state: State) -> list[int]:
        """Return the number of the batch of each microbatch, among those of the step."""
        batches = enumerate(batches_of(state.batch))
        return [i for i, batch in batches for _ in self._parts(batch, state.batch_spec)]

    def _parts(self, batch: Any, spec: BatchSpec) -> list[Any]:
        sizes = microbatch_sizes(spec.count(batch), parts=self.count, size=self.size)
        return [batch] if len(sizes) == 1 else spec.split(batch, sizes)

    def state_dict(self) -> MicrobatchesState:
        """Return the size that fits into memory."""
        return {"size": self.size if self.auto else None}

    def load_state_dict(self, state: MicrobatchesState) -> None:
        """Restore the size that fits into memory."""
        if self.auto:
            self.size = state["size"]


def sum_gradients(
    gradients: Callable[..., State], engine: Engine, microbatches: Microbatches
) -> Callable[..., State]:
    """Sum the gradients over the microbatches and shards of a batch, if it has several.

    Args:
        gradients: Computes the gradients of a microbatch.
        engine: Sums over shards and processes.
        microbatches: How batches are split.
    """
    if not microbatches.split:
        return gradients
    gradients = each_shard(accumulate(gradients, microbatches, engine.equal_parts))
    if microbatches.auto and engine.has_shards:
        gradients = fit_memory(gradients, microbatches)
    return reduce(gradients, engine)


def accumulate(
    gradients: Callable[..., State], microbatches: Microbatches, equal_parts: Callable[[int], int]
) -> Callable[..., State]:
    """Sum the gradients over microbatches, each weighted by its share of the batch's loss.

    Args:
        gradients: Computes the gradients of a microbatch.
        microbatches: How batches are split.
        equal_parts: Returns how many microbatches there are on every process; those that are
            missing here are repeated, with the weight 0.
    """

    def accumulated(
        state: State, sums: Sums, index: int = 0, last: bool = True, empty: bool = False
    ) -> State:
        whole, own = state.batch, state.loss_fn
        parts = microbatches.of(state)
        batch, loss_fn, _ = parts[-1]
        parts += [(batch, loss_fn, True)] * (equal_parts(len(parts)) - len(parts))
        if len(parts) > 1:
            sums.split(state, parts[0][0], len(parts))
        loss: Any = 0.0
        for i, (batch, loss_fn, without) in enumerate(parts):
            part = state.evolve_unchecked(batch=batch, loss_fn=loss_fn)
            final = last and i == len(parts) - 1
            number = index if len(parts) == 1 else i
            state = gradients(part, sums, number, final, empty or without)
            loss = loss + state.loss if len(parts) > 1 else state.loss
        return state.evolve_unchecked(batch=whole, loss_fn=own, loss=loss)

    return accumulated


def each_shard(gradients: Callable[..., State]) -> Callable[[State, Sums], State]:
    """Add the gradients of the shards of this process, or those of a batch that has none.

    Every shard starts from the same buffers, such as the running statistics of batch norm.
    """

    def added(state: State, sums: Sums) -> State:
        sums.begin(state)
        whole, key, own = state.batch, state.key, state.loss_fn
        if not isinstance(whole, ShardedBatch):
            return gradients(state, sums)
        before = Buffers.of(state) if len(whole.batches) > 1 else None
        for number, batch, loss_fn, empty in zip(
            whole.numbers, whole.batches, whole.loss_fns, whole.empty, strict=True
        ):
            if before is not None and number != whole.shards.own.start:
                before.restore()
            loss_fn, shard = loss_fn or own, key.of_batch(number)
            part = state.evolve_unchecked(batch=batch, loss_fn=loss_fn, key=shard)
            state = gradients(part, sums, 0, number == whole.shards.own[-1], empty)
            sums.add(state)
        return state.evolve_unchecked(batch=whole, loss_fn=own, key=key)

    return added


def reduce(gradients: Callable[[State, Sums], State], engine: Engine) -> Callable[[State], State]:
    """Reduce the gradients of all parts of a batch, on all processes."""

    def reduced(state: State) -> State:
        sums = engine.sums(state)
        try:
            state = gradients(state, sums)
            return state.evolve_unchecked(loss=sums.reduce(state))
        finally:
            sums.end()

    return reduced


def each_batch(fire: Callable[[Event, State], State]) -> Callable[[Event, State], State]:
    """Fire an event for each batch of a group, with random numbers and a loss of its own."""

    def firing(event: Event, state: State) -> State:
        group, key, own = state.batch, state.key, state.loss_fn
        if not isinstance(group, BatchGroup):
            return fire(event, state)
        done = []
        for i, batch, loss_fn in zip(group.numbers, group.batches, group.loss_fns, strict=True):
            changes = {"batch": batch, "loss_fn": loss_fn or own}
            state = firing(event, state.evolve_unchecked(**changes, key=key.of_batch(i)))
            done.append((state.batch, None if state.loss_fn is own else state.loss_fn))
        batches, after = zip(*done, strict=True)
        group = attrs.evolve(group, batches=batches, loss_fns=after)
        return state.evolve_unchecked(batch=group, loss_fn=own, key=key)

    return firing


def fit_memory(gradients: Callable[..., State], microbatches: Microbatches) -> Callable[..., State]:
    """Halve the microbatches until the gradients of a batch fit into memory."""

    def fitting(state: State, *sums: Sums) -> State:
        count = max(map(state.batch_spec.count, batches_of(state.batch)))
        buffers = Buffers.of(state)
        while True:
            microbatches.size = microbatches.size or count
            try:
                return gradients(state, *sums)
            except torch.OutOfMemoryError as error:
                microbatches.size = halve_microbatch(min(microbatches.size, count), error)
            zero_grad(state)  # outside of the handler, whose error holds the memory of the pass
            buffers.restore()
            torch.cuda.empty_cache()

    return fitting
