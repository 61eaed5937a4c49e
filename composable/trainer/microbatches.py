"""Microbatches: how a batch is split, and the gradients of the parts."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import torch
from typing_extensions import TypedDict

from composable._support.notes import add_note
from composable.batches.batch import microbatch_sizes
from composable.batches.spec import BatchSpec
from composable.core.state import State
from composable.core.stateful import Size
from composable.data.grouping import BatchPart, batches_of, parts_of, shards_in
from composable.engines.engine import Engine, Sums
from composable.engines.modules import Buffers
from composable.optim.stepping import zero_grad

log = logging.getLogger("composable")


class Microbatch(NamedTuple):
    """A part of a step, of which gradients are computed in one backward pass."""

    batch: Any = None
    loss_fn: Any = None
    """Its loss, or None for the step's."""
    empty: bool = False
    """Whether it has the weight 0: see `ShardedBatch`."""
    place: tuple[int, int, int] = (0, 0, 0)
    """The numbers of its batch, of its shard, and of the microbatch in the shard."""
    last: bool = True
    """Whether it is the last one of this process."""


WHOLE = Microbatch()
"""Stands for a batch that is not split."""


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

    def of(
        self, shard: BatchPart, spec: BatchSpec, equal_parts: Callable[[int], int], *, last: bool
    ) -> list[Microbatch]:
        """Return the microbatches of a shard.

        Args:
            shard: The shard; a batch that has none is one.
            spec: What the examples of a batch are.
            equal_parts: Returns how many microbatches there are on every process; those that are
                missing here are repeated, with the weight 0.
            last: Whether it is the last shard of this process.
        """
        parts = parts_of(shard.batch)
        found = [(part, one) for part in parts for one in self._split(part.batch, spec)]
        own, count = len(found), equal_parts(len(found))
        return [
            Microbatch(
                batch,
                part.loss_fn or shard.loss_fn,
                shard.empty or part.empty or i >= own,
                (part.number, shard.number, i),
                last and i == count - 1,
            )
            for i, (part, batch) in enumerate(found + found[-1:] * (count - own))
        ]

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
    gradients = each_part(gradients, microbatches, engine.equal_parts)
    if microbatches.auto and engine.has_shards:
        gradients = fit_memory(gradients, microbatches)
    return reduce(gradients, engine)


def each_part(
    gradients: Callable[..., State], microbatches: Microbatches, equal_parts: Callable[[int], int]
) -> Callable[[State, Sums], State]:
    """Sum the gradients over the microbatches of all shards of this process.

    Every shard starts from the same buffers, such as the running statistics of batch norm.

    Args:
        gradients: Computes the gradients of a microbatch, weighted by its share of the loss.
        microbatches: How batches are split.
        equal_parts: Returns how many microbatches of a shard there are on every process.
    """

    def summed(state: State, sums: Sums) -> State:
        sums.begin(state)
        whole, key, own = state.batch, state.key, state.loss_fn
        shards = shards_in(whole)
        before = Buffers.of(state) if len(shards) > 1 else None
        for i, shard in enumerate(shards):
            if before is not None and i:
                before.restore()
            state = state.evolve_unchecked(batch=shard.batch, key=key.of_batch(shard.number))
            last = i == len(shards) - 1
            parts = microbatches.of(shard, state.batch_spec, equal_parts, last=last)
            state = add_shard(state, sums, parts, own)
            sums.add(state)
        if len(shards) > 1 or len(parts) > 1:
            state = state.without_outputs()
        return state.evolve_unchecked(batch=whole, loss_fn=own, key=key)

    def add_shard(state: State, sums: Sums, parts: list[Microbatch], loss_fn: Any) -> State:
        if len(parts) > 1:
            sums.split(state, parts[0].batch, len(parts))
        loss: Any = None
        for part in parts:
            state = state.evolve_unchecked(batch=part.batch, loss_fn=part.loss_fn or loss_fn)
            state = gradients(state, sums, part)
            loss = state.loss if loss is None else loss + state.loss
        return state.evolve_unchecked(loss=loss)

    return summed


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
            if state.device.type != "cpu":
                torch.get_device_module(state.device).empty_cache()

    return fitting


def halve_microbatch(size: int, error: torch.OutOfMemoryError) -> int:
    """Return half the size of a microbatch that does not fit into memory.

    Raises:
        torch.OutOfMemoryError: The microbatch has one example.
    """
    if size <= 1:
        add_note(error, "a microbatch of one example does not fit into memory.")
        raise error
    smaller = (size + 1) // 2
    log.warning("out of memory with microbatches of %d examples: trying %d", size, smaller)
    return smaller
