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
from composable.data.grouping import BatchGroup, batches_of
from composable.trainer.guards import Buffers, halve_microbatch
from composable.trainer.loss_shares import LossShares, StepShares
from composable.trainer.parameters import zero_grad

__all__ = ["Microbatches", "accumulate", "each_batch", "fit_memory"]


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


def accumulate(
    gradients: Callable[..., State],
    microbatches: Microbatches,
    shares: LossShares,
    equal_count: Callable[[int], int] | None = None,
) -> Callable[..., State]:
    """Sum the gradients over microbatches, each weighted by its share of the batch's loss.

    Args:
        gradients: Computes the gradients of a microbatch.
        microbatches: How batches are split.
        shares: The shares of microbatches.
        equal_count: Returns how many microbatches there are on the process that has most; those
            that are missing here are repeated, with the weight 0.
    """

    def accumulated(
        state: State,
        index: int = 0,
        outer: StepShares | None = None,
        last: bool = True,
        empty: bool = False,
    ) -> State:
        whole, own = state.batch, state.loss_fn
        parts = microbatches.of(state)
        if equal_count is not None:
            batch, loss_fn, _ = parts[-1]
            parts += [(batch, loss_fn, True)] * (equal_count(len(parts)) - len(parts))
        step = outer
        if step is None and len(parts) > 1:
            step = StepShares(shares, state, parts[0][0], len(parts))
        loss: Any = 0.0
        for i, (batch, loss_fn, without) in enumerate(parts):
            part = state.evolve_unchecked(batch=batch, loss_fn=loss_fn)
            final = last and i == len(parts) - 1
            number = index if len(parts) == 1 else i
            state = gradients(part, number, step, final, empty or without)
            loss = loss + state.loss if len(parts) > 1 else state.loss
        if step is not None and outer is None:
            loss = step.finish(state, loss, step.seen)
        return state.evolve_unchecked(batch=whole, loss_fn=own, loss=loss)

    return accumulated


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


def fit_memory(
    gradients: Callable[[State], State], microbatches: Microbatches
) -> Callable[[State], State]:
    """Halve the microbatches until the gradients of a batch fit into memory."""

    def fitting(state: State) -> State:
        count = max(map(state.batch_spec.count, batches_of(state.batch)))
        buffers = Buffers.of(state)
        while True:
            microbatches.size = microbatches.size or count
            try:
                return gradients(state)
            except torch.OutOfMemoryError as error:
                microbatches.size = halve_microbatch(min(microbatches.size, count), error)
            zero_grad(state)  # outside of the handler, whose error holds the memory of the pass
            buffers.restore()
            torch.cuda.empty_cache()

    return fitting
