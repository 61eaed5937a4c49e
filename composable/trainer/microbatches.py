"""Microbatches: how a batch is split, and the gradients of the parts."""

from collections.abc import Callable
from typing import Any

import attrs
import torch

from composable.core.batch import count_examples, microbatch_sizes, split_batch
from composable.core.state import State
from composable.trainer.guards import Buffers, halve_microbatch
from composable.trainer.parameters import zero_grad

__all__ = ["Microbatches", "accumulate", "fit_memory"]


@attrs.define(eq=False)
class Microbatches:
    """How a batch is split: into `count` microbatches, or into microbatches of `size` examples."""

    count: int | None = None
    size: int | None = None
    auto: bool = False
    """Whether `size` is halved until a batch fits into memory."""

    @property
    def split(self) -> bool:
        """Whether batches are split at all."""
        return bool(self.count or self.size or self.auto)

    def sizes(self, examples: int) -> list[int]:
        """Return the size of each microbatch of a batch."""
        return microbatch_sizes(examples, parts=self.count, size=self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the size that fits into memory."""
        return {"size": self.size if self.auto else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the size that fits into memory."""
        if self.auto:
            self.size = state["size"]


def accumulate(
    gradients: Callable[..., State], microbatches: Microbatches, loss_weight: Callable[[Any], Any]
) -> Callable[[State], State]:
    """Sum the gradients over microbatches, each weighted by its share of the batch's loss."""

    def accumulated(state: State) -> State:
        whole = state.batch
        sizes = microbatches.sizes(count_examples(state.batch_spec.inputs(whole)))
        if len(sizes) == 1:
            return gradients(state)
        total = loss_weight(whole)
        loss: Any = 0.0
        for i, batch in enumerate(split_batch(whole, sizes)):
            share = loss_weight(batch) / total
            state = gradients(state.evolve_unchecked(batch=batch), i, share)
            loss = loss + state.loss
        return state.evolve_unchecked(batch=whole, loss=loss)

    return accumulated


def fit_memory(
    gradients: Callable[[State], State], microbatches: Microbatches
) -> Callable[[State], State]:
    """Halve the microbatches until the gradients of a batch fit into memory."""

    def fitting(state: State) -> State:
        count = count_examples(state.batch_spec.inputs(state.batch))
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
