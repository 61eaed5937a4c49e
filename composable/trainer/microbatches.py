"""Microbatches: how a batch is split, and the gradients of the parts."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from typing_extensions import TypedDict

from composable.core.batch import microbatch_sizes
from composable.core.batch_spec import BatchSpec
from composable.core.state import State
from composable.core.stateful import Size
from composable.data.grouping import batches_of, parts_of, shards_in
from composable.engines.engine import Engine, Sums
from composable.engines.modules import Buffers
from composable.optim.stepping import zero_grad
from composable.trainer.guards import halve_microbatch

__all__ = [
    "Microbatches",
    "accumulate",
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
        return [
            (microbatch, part.loss_fn or state.loss_fn, part.empty)
            for part in parts_of(state.batch)
            for microbatch in self._split(part.batch, state.batch_spec)
        ]

    def batch_numbers(self, state: State) -> list[int]:
        """Return the number of the batch of each microbatch, among those of the step."""
        parts, spec = parts_of(state.batch), state.batch_spec
        return [part.number for part in parts for _ in self._split(part.batch, spec)]

    def _split(self, batch: Any, spec: BatchSpec) -> list[Any]:
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
    """Add the gradients of the shards of this process; a batch that has none is one shard.

    Every shard starts from the same buffers, such as the running statistics of batch norm.
    """

    def added(state: State, sums: Sums) -> State:
        sums.begin(state)
        whole, key, own = state.batch, state.key, state.loss_fn
        shards = shards_in(whole)
        before = Buffers.of(state) if len(shards) > 1 else None
        for i, (number, batch, loss_fn, empty) in enumerate(shards):
            if before is not None and i:
                before.restore()
            loss_fn, shard = loss_fn or own, key.of_batch(number)
            part = state.evolve_unchecked(batch=batch, loss_fn=loss_fn, key=shard)
            state = gradients(part, sums, 0, i == len(shards) - 1, empty)
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
