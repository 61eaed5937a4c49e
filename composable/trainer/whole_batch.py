"""The whole of a batch that was split: the outputs and the targets of all parts, joined."""

from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.tree import map_tensors, tensors_of
from composable.batches.joined import join_parts
from composable.batches.spec import BatchSpec
from composable.core.state import State
from composable.data.grouping import is_group
from composable.distributed.outputs import gather_outputs
from composable.distributed.processes import Processes
from composable.losses.loss import TargetLoss
from composable.losses.part_weights import SplitLossError

__all__ = ["NAME_OUTPUTS", "Part", "join_parts_of_batch"]

NAME_OUTPUTS = (
    "name those outputs of the model that the loss needs, tensors with a row for each example, by "
    "WholeLoss(outputs=...), such as lambda outputs: (outputs.image_embeds, outputs.text_embeds)."
)


@attrs.define(eq=False)
class Part:
    """A part of a batch: its outputs, and then their gradients."""

    outputs: Any
    batch: Any
    loss_fn: Any
    examples: int
    """Its number of examples: 0 for one with the weight 0."""
    place: list[int]
    """Where it is in the whole: the numbers of its batch, its shard and its microbatch."""
    changed: bool
    """Whether an algorithm has replaced its batch."""
    share: float = 0.0
    """Its share of the examples of the whole."""
    other: Any = None
    """The outputs for a part that has a weight, if this one has none."""
    gradients: list[Tensor | None] = attrs.field(factory=list)
    """The gradient of each output, or None for one that the loss does not use."""

    def take_gradients(self, scale: int, *, keep_outputs: bool) -> None:
        """Take the gradients of the outputs, times a number; those of no weight are 0."""
        own, other = list(tensors_of(self.outputs)), tensors_of(self.other)
        if self.examples:
            found = (tensor.grad for tensor in own)
            self.gradients = [g if g is None or scale == 1 else g * scale for g in found]
        else:
            used = (tensor.grad is not None for tensor in other)
            self.gradients = [
                torch.zeros_like(tensor) if there else None
                for tensor, there in zip(own, used, strict=True)
            ]
        self.outputs = self.outputs if keep_outputs else None

    def pairs(self, outputs: Any) -> list[tuple[Tensor, Tensor]]:
        """Return the outputs of a second pass that have a gradient, each with it."""
        return [
            (output, gradient)
            for output, gradient in zip(tensors_of(outputs), self.gradients, strict=True)
            if output.requires_grad and gradient is not None
        ]


def join_parts_of_batch(state: State, parts: list[Part], processes: Processes) -> State:
    """Return the state with the outputs and the batch of the whole, for its loss.

    Args:
        state: The state with the batch, or the part of it that this process has.
        parts: The parts of this process, whose outputs become leaves of a graph.
        processes: The processes whose parts are joined.

    Raises:
        SplitLossError: The parts can't be joined.
    """
    loss_fn, spec = parts[0].loss_fn, state.batch_spec
    if any(part.loss_fn is not loss_fn for part in parts):
        raise SplitLossError(
            "an algorithm has given parts of a batch losses of their own before the loss of the "
            "whole; let it act at BEFORE_LOSS."
        )
    joins_batch = is_group(state.batch) or any(part.changed for part in parts)
    own = []
    for part in parts:
        part.outputs = map_tensors(_as_leaf, part.outputs)
        batch = _without_inputs(part.batch, loss_fn, spec) if joins_batch else None
        own.append((part.place, (part.outputs, batch, part.examples)))
    own.sort(key=lambda placed: placed[0])
    pieces = [one for one in gather_outputs(own, own[0][1], processes) if one[2]]
    sizes = [examples for *_, examples in pieces]
    leaves = [map_tensors(_as_leaf, outputs) for outputs, *_ in pieces]
    for part in parts:
        part.share, part.other = part.examples / sum(sizes), leaves[0]
    try:
        outputs = join_parts(leaves, sizes, "outputs")
    except (TypeError, ValueError) as error:
        raise SplitLossError(f"{error}; {NAME_OUTPUTS}") from error
    batch = join_parts([one for _, one, _ in pieces], sizes) if joins_batch else state.batch
    return state.evolve_unchecked(outputs=outputs, batch=batch, loss_fn=loss_fn)


def _as_leaf(tensor: Tensor) -> Tensor:
    """Return a tensor for which gradients are computed, if it can have some."""
    if tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.detach().requires_grad_()


class InputsNotKept:
    """The place of the inputs in a batch that is joined from parts for the loss."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error(f".{name}")

    def __getitem__(self, key: object) -> Any:
        raise self._error(f"[{key!r}]")

    def _error(self, place: str) -> SplitLossError:
        return SplitLossError(
            f"inputs{place} is not available to the loss of the whole of several batches, shards "
            "or processes, whose inputs are not joined; let the model return what is needed of "
            "them among its outputs."
        )


_NOT_KEPT = InputsNotKept()


def _without_inputs(batch: Any, loss_fn: Any, spec: BatchSpec) -> Any:
    """Return a batch without its input, if the loss takes the targets only."""
    if not isinstance(loss_fn, TargetLoss) or isinstance(batch, Tensor):
        return batch
    empty = (_NOT_KEPT,) * len(spec.input_key) if spec.has_several_inputs else _NOT_KEPT
    try:  # the targets may be a part of the input
        return spec.replace(batch, inputs=empty, targets=spec.targets(batch))
    except ValueError:  # a key that reads the batch only
        return batch
