"""Checks of the outputs of which the loss of a whole batch is computed: in the first step only."""

from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.tree import tensors_of
from composable.batches.batch import describe_batch
from composable.core.state import State
from composable.engines.engine import Engine
from composable.losses.confirmation import select, without_effects
from composable.losses.loss import OutputLoss
from composable.losses.part_weights import SplitLossError
from composable.trainer.whole_batch import NAME_OUTPUTS

__all__ = ["OutputChecks"]


@attrs.define(eq=False)
class OutputChecks:
    """Checks that outputs can be joined, and are those of a second pass."""

    engine: Engine
    done: bool = False
    """Whether a step has been checked."""

    def check_run(self, state: State, *, auto: bool) -> None:
        """Check that the loss takes outputs, and that all processes split alike.

        Raises:
            SplitLossError: The loss can't be computed of the outputs for a whole batch.
            ValueError: A process may have to split its part of a batch again.
        """
        if self.done:
            return
        if auto and self.engine.processes.several:
            raise ValueError(
                "microbatch_size='auto' can't be used with WholeLoss in several processes: one "
                "that is short of memory can't repeat its outputs alone; pass a number."
            )
        if isinstance(state.loss_fn, OutputLoss):
            raise SplitLossError(
                f"{type(state.model).__name__} computes its loss in its forward pass, from a part "
                "of a batch; pass loss_fn, a function of outputs and targets, to the Trainer, and "
                f"{NAME_OUTPUTS}"
            )

    def check_outputs(self, state: State) -> None:
        """Check the outputs for a part of a batch.

        Raises:
            TypeError: They have no tensors.
            SplitLossError: The examples are items of lists, or a tensor compares the examples of a
                part.
        """
        if self.done:
            return
        if (layout := state.batch_spec.layout_of(state.batch)) != "tensors":
            raise SplitLossError(
                f"WholeLoss joins tensors with a row for each example, and the batch has the "
                f"layout {layout!r}; return batches and outputs of tensors, padded to one shape."
            )
        if not any(True for _ in tensors_of(state.outputs)):
            raise TypeError(
                f"{type(state.model).__name__} returned {describe_batch(state.outputs)}, which has "
                "no tensor in a tuple, a list, a mapping or a dataclass; return these, or "
                f"{NAME_OUTPUTS}"
            )
        self._check_sizes(state)

    def _check_sizes(self, state: State) -> None:
        """Refuse outputs with a column for each example of a part, such as similarities.

        Where a size is the number of examples, the model is called with another number.
        """
        count = state.batch_spec.count(state.batch)
        shapes = _shapes(state.outputs)
        if not self.engine.agree_on_calls(any(count in shape for shape in shapes)):
            return
        indices = [*range(count // 2)] if count > 1 else [0, 0]
        other = state.evolve_unchecked(batch=select(state, state.batch, indices))
        with without_effects(state):
            others = _shapes(self.engine.forward.read(other))
        differing = [pair for pair in zip(shapes, others, strict=True) if pair[0] != pair[1]]
        if differing:
            shape, other_shape = differing[0]
            raise SplitLossError(
                f"{type(state.model).__name__} returned a tensor whose rows have the shape {shape} "
                f"for {count} examples and {other_shape} for {len(indices)}: it compares the "
                f"examples of a part of a batch, so it is not a part of the whole; {NAME_OUTPUTS}"
            )

    def compare(self, state: State, first: Any) -> None:
        """Check that the outputs of the second pass are those of the first, but for rounding.

        Raises:
            SplitLossError: They differ.
        """
        if self.done:
            return
        for kept, output in zip(tensors_of(first), tensors_of(state.outputs), strict=True):
            if not _is_close(kept, output):
                raise SplitLossError(
                    f"{type(state.model).__name__} returned other outputs in the second of two "
                    "forward passes over the same examples, with the same random numbers of "
                    "PyTorch: it draws numbers from a generator of its own, of Python or of NumPy, "
                    "or counts its calls outside of its buffers. Draw from the generators of "
                    "PyTorch, and keep counts in buffers; or omit WholeLoss, and don't split."
                )


def _shapes(outputs: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the rows of outputs."""
    return [tuple(tensor.shape[1:]) for tensor in tensors_of(outputs)]


def _is_close(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    size = first.detach().abs().nan_to_num(0, 0, 0).max() if first.numel() else 0.0
    tolerance = torch.finfo(first.dtype).eps ** 0.5
    return torch.allclose(
        second.detach(), first.detach(), rtol=0, atol=tolerance * float(size), equal_nan=True
    )
