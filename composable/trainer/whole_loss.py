"""Gradients of any loss of a batch that is split: Gao et al. 2021, "GradCache".

1. The outputs of all parts, without a graph: BEFORE_FORWARD and AFTER_FORWARD, for algorithms only.
2. The loss of the whole and the gradients of the outputs: BEFORE_LOSS to BEFORE_BACKWARD.
3. Each part again, with the same random numbers, and its vector-Jacobian product: BEFORE_FORWARD,
   AFTER_FORWARD and AFTER_BACKWARD.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor

from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import describe_batch
from composable.batches.joined import join_parts
from composable.batches.spec import BatchSpec
from composable.core.event import Event
from composable.core.state import State
from composable.data.grouping import is_group
from composable.distributed.outputs import gather_outputs
from composable.distributed.processes import Processes
from composable.engines.engine import Engine, Sums
from composable.engines.modules import Buffers
from composable.losses.confirmation import select, without_effects
from composable.losses.loss import OutputLoss, TargetLoss, check_loss
from composable.losses.part_weights import SplitLossError
from composable.optim.stepping import zero_grad
from composable.plan.dispatch import Dispatcher
from composable.trainer.microbatches import Microbatch, Microbatches, each_part, fit_memory, reduce
from composable.utils.reproducibility import seed_step, seed_torch

Gradients: TypeAlias = Callable[..., State]

_NAME_OUTPUTS = (
    "name those outputs of the model that the loss needs, tensors with a row for each example, by "
    "WholeLoss(outputs=...), such as lambda outputs: (outputs.image_embeds, outputs.text_embeds)."
)


def whole_loss(
    split: Gradients,
    dispatcher: Dispatcher,
    engine: Engine,
    microbatches: Microbatches,
    measure: Callable[..., None] | None = None,
) -> Gradients:
    """Compute the gradients of the loss of a whole batch in the steps that request it.

    Args:
        split: Computes the gradients of the other steps, by the losses of the parts.
        dispatcher: Fires the events.
        engine: Computes outputs, losses and gradients, and sums over shards and processes.
        microbatches: How batches are split.
        measure: Measures the outputs.
    """
    whole: Gradients = _WholeLoss(dispatcher, engine, microbatches, measure)
    if microbatches.auto and engine.has_shards:
        whole = fit_memory(whole, microbatches)

    def gradients(state: State) -> State:
        return whole(state) if state.whole_loss else split(state)

    return gradients


@attrs.define(eq=False)
class _WholeLoss:
    """Computes the gradients of the loss of a whole batch."""

    dispatcher: Dispatcher
    engine: Engine
    microbatches: Microbatches
    measure: Callable[..., None] | None = None
    checked: bool = False
    """Whether the outputs of a step have been checked."""

    def __call__(self, state: State, *_: Any) -> State:
        """Compute the gradients of a batch, and return the state with its loss."""
        if not self.checked:
            _check_run(state, self.engine, auto=self.microbatches.auto)
        parts: list[Part] = []
        before = Buffers.of(state)
        seen = self._each_part(partial(self._read, parts))(state, Sums(self.engine.shares))
        before.restore()  # both passes start alike, for a layer that counts its calls
        after = self._differentiate_loss(seen, parts)
        loss: Tensor = after.loss.detach()  # type: ignore[union-attr]  # it was just computed
        state = state.evolve_unchecked(memory=_merge(state.memory, seen.memory, after.memory))
        differentiate = self._each_part(partial(self._differentiate, loss, iter(parts)))
        state = reduce(differentiate, self.engine)(state)
        self.checked = True
        return state.evolve_unchecked(loss=loss, whole_loss=False)

    def _each_part(self, function: Gradients) -> Callable[[State, Any], State]:
        return each_part(function, self.microbatches, self.engine.equal_parts)

    def _read(self, parts: "list[Part]", state: State, sums: Sums, part: Microbatch) -> State:
        """Compute the outputs for a part without a graph, and keep them."""
        act, batch, loss_fn = self.dispatcher.run_algorithms, state.batch, state.loss_fn
        state = act(Event.BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, part.place[-1])
        outputs = self.engine.forward.read(state)
        state = act(Event.AFTER_FORWARD, state.evolve_unchecked(outputs=outputs))
        if not self.checked:
            _check_outputs(state, self.engine)
        if self.measure is not None and not part.empty:
            self.measure(state, state.outputs, part.place)
        count = 0 if part.empty else state.batch_spec.count(state.batch)
        place, changed = list(part.place), state.batch is not batch
        parts.append(Part(state.outputs, state.batch, state.loss_fn, count, place, changed))
        return state.evolve_unchecked(batch=batch, loss_fn=loss_fn, loss=torch.zeros(()))

    def _differentiate_loss(self, state: State, parts: "list[Part]") -> State:
        """Compute the loss of the whole, and the gradients of outputs and of its parameters."""
        fire, engine = self.dispatcher.fire, self.engine
        state = join_parts_of_batch(state, parts, engine.processes)
        seed_torch(state.key.fold("loss", state.timestamp.batch).seed)
        state = fire(Event.BEFORE_LOSS, state)
        loss = check_loss(engine.forward.loss(state, state.outputs))
        state = fire(Event.AFTER_LOSS, state.evolve_unchecked(loss=loss))
        state = fire(Event.BEFORE_BACKWARD, state)
        whole: Any = state.loss
        (engine.scaler.backward if engine.scaler.enabled else torch.autograd.backward)(whole)
        if not (engine.mean_gradients or engine.processes.is_main):
            zero_grad(state)  # each process has the loss's parameters' gradients, which count once
        scale = engine.processes.size if engine.mean_gradients else 1
        for part in parts:
            part.take_gradients(scale, keep_outputs=not self.checked)
        return state

    def _differentiate(
        self,
        loss: Tensor,
        parts: "Iterator[Part]",
        state: State,
        sums: Sums,
        microbatch: Microbatch,
    ) -> State:
        """Compute the vector-Jacobian product of a part."""
        fire, part, batch, loss_fn = self.dispatcher.fire, next(parts), state.batch, state.loss_fn
        state = fire(Event.BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, microbatch.place[-1])
        sums.begin_part(microbatch.last)
        outputs = self.engine.forward.outputs(state)
        state = fire(Event.AFTER_FORWARD, state.evolve_unchecked(outputs=outputs))
        if not self.checked:
            _compare(state, part.outputs)
        value = loss * part.share
        zero = torch.zeros_like(loss)  # for a backward pass in which only processes exchange
        pairs = part.pairs(state.outputs) or [(zero.clone().requires_grad_(), zero)]
        tensors, gradients = zip(*pairs, strict=True)
        first, *others = tensors
        self.engine.backward([sums.joined(first, value), *others], gradients)
        state = state.evolve_unchecked(loss=value, batch=batch, loss_fn=loss_fn)
        return fire(Event.AFTER_BACKWARD, state)


def _merge(
    memory: Mapping[str, Any], seen: Mapping[str, Any], after: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a memory with what algorithms remembered between two states."""
    if after is seen:
        return memory
    changed = {name: value for name, value in after.items() if seen.get(name) is not value}
    return MappingProxyType({**memory, **changed})


# --- the outputs and the targets of all parts, joined ---


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
        """Take the gradients of the outputs, times a number; 0 for outputs without weight."""
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
            "an algorithm replaced the loss of a microbatch, and another needs the loss of the "
            "whole batch; let the first act at BEFORE_LOSS."
        )
    joins_batch = is_group(state.batch) or any(part.changed for part in parts)
    own = []
    for part in parts:
        part.outputs = map_tensors(_as_leaf, part.outputs)
        batch = _without_inputs(part.batch, loss_fn, spec) if joins_batch else None
        own.append((part.place, (part.outputs, batch, part.examples)))
    own.sort(key=lambda placed: placed[0])
    pieces = [output for output in gather_outputs(own, own[0][1], processes) if output[2]]
    sizes = [examples for *_, examples in pieces]
    leaves = [map_tensors(_as_leaf, outputs) for outputs, *_ in pieces]
    for part in parts:
        part.share, part.other = part.examples / sum(sizes), leaves[0]
    try:
        outputs = join_parts(leaves, sizes, "outputs")
    except (TypeError, ValueError) as error:
        raise SplitLossError(f"{error}; {_NAME_OUTPUTS}") from error
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


# --- checks, in the first step only ---


def _check_run(state: State, engine: Engine, *, auto: bool) -> None:
    """Check that the loss takes outputs, and that all processes split alike.

    Raises:
        SplitLossError: The loss can't be computed of the outputs for a whole batch.
        ValueError: A process may have to split its part of a batch again.
    """
    if auto and engine.processes.several:
        raise ValueError(
            "microbatch_size='auto' can't be used with WholeLoss in several processes: one "
            "that is short of memory can't repeat its outputs alone; pass a number."
        )
    if isinstance(state.loss_fn, OutputLoss):
        raise SplitLossError(
            f"{type(state.model).__name__} computes its loss in its forward pass, from a part "
            "of a batch; pass loss_fn, a function of outputs and targets, to the Trainer, and "
            f"{_NAME_OUTPUTS}"
        )


def _check_outputs(state: State, engine: Engine) -> None:
    """Check the outputs for a part of a batch.

    Raises:
        TypeError: They have no tensors.
        SplitLossError: The examples are items of lists, or a tensor compares the examples of a
            part.
    """
    if (layout := state.batch_spec.layout_of(state.batch)) != "tensors":
        raise SplitLossError(
            f"WholeLoss joins tensors with a row for each example, and the batch has the "
            f"layout {layout!r}; return batches and outputs of tensors, padded to one shape."
        )
    if not any(True for _ in tensors_of(state.outputs)):
        raise TypeError(
            f"{type(state.model).__name__} returned {describe_batch(state.outputs)}, which has "
            "no tensor in a tuple, a list, a mapping or a dataclass; return these, or "
            f"{_NAME_OUTPUTS}"
        )
    _check_sizes(state, engine)


def _check_sizes(state: State, engine: Engine) -> None:
    """Refuse outputs with a column for each example of a part, such as similarities.

    Where a size is the number of examples, the model is called with another number.
    """
    count = state.batch_spec.count(state.batch)
    shapes = _shapes(state.outputs)
    if not engine.agree_on_calls(any(count in shape for shape in shapes)):
        return
    indices = [*range(count // 2)] if count > 1 else [0, 0]
    other = state.evolve_unchecked(batch=select(state, state.batch, indices))
    with without_effects(state):
        others = _shapes(engine.forward.read(other))
    differing = [pair for pair in zip(shapes, others, strict=True) if pair[0] != pair[1]]
    if differing:
        shape, other_shape = differing[0]
        raise SplitLossError(
            f"{type(state.model).__name__} returned a tensor whose rows have the shape {shape} "
            f"for {count} examples and {other_shape} for {len(indices)}: it compares the "
            f"examples of a part of a batch, so it is not a part of the whole; {_NAME_OUTPUTS}"
        )


def _compare(state: State, first: Any) -> None:
    """Check that the outputs of the second pass equal the first's, but for rounding.

    Raises:
        SplitLossError: They differ.
    """
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
