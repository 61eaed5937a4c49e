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

from composable.core.event import Event
from composable.core.state import State
from composable.engines.engine import Engine, Sums
from composable.engines.modules import Buffers
from composable.losses.loss import check_loss
from composable.optim.stepping import zero_grad
from composable.plan.dispatch import Dispatcher
from composable.trainer.microbatches import Microbatch, Microbatches, each_part, fit_memory
from composable.trainer.output_checks import OutputChecks
from composable.trainer.whole_batch import Part, join_parts_of_batch
from composable.utils.reproducibility import seed_step, seed_torch

__all__ = ["whole_loss"]

Gradients: TypeAlias = Callable[..., State]


def whole_loss(
    split: Gradients, dispatcher: Dispatcher, engine: Engine, microbatches: Microbatches
) -> Gradients:
    """Compute the gradients of the loss of a whole batch in the steps that request it.

    Args:
        split: Computes the gradients of the other steps, by the losses of the parts.
        dispatcher: Fires the events.
        engine: Computes outputs, losses and gradients, and sums over shards and processes.
        microbatches: How batches are split.
    """
    whole: Gradients = _WholeLoss(dispatcher, engine, microbatches)
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
    checks: OutputChecks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.checks = OutputChecks(self.engine)

    def __call__(self, state: State, *_: Any) -> State:
        """Compute the gradients of a batch, and return the state with its loss."""
        self.checks.check_run(state, auto=self.microbatches.auto)
        parts: list[Part] = []
        before = Buffers.of(state)
        seen = self._each_part(partial(self._read, parts))(state, Sums(self.engine.shares))
        before.restore()  # both passes start alike, for a layer that counts its calls
        after = self._differentiate_loss(seen, parts)
        loss: Tensor = after.loss.detach()  # type: ignore[union-attr]  # it was just computed
        state = state.evolve_unchecked(memory=_merge(state.memory, seen.memory, after.memory))
        state = self._differentiate_parts(state, loss, parts)
        self.checks.done = True
        return state.evolve_unchecked(loss=loss, whole_loss=False)

    def _each_part(self, function: Gradients) -> Callable[[State, Any], State]:
        return each_part(function, self.microbatches, self.engine.equal_parts)

    def _read(self, parts: list[Part], state: State, sums: Sums, part: Microbatch) -> State:
        """Compute the outputs for a part without a graph, and keep them."""
        act, batch, loss_fn = self.dispatcher.run_algorithms, state.batch, state.loss_fn
        state = act(Event.BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, part.place[-1])
        outputs = self.engine.forward.read(state)
        state = act(Event.AFTER_FORWARD, state.evolve_unchecked(outputs=outputs))
        self.checks.check_outputs(state)
        count = 0 if part.empty else state.batch_spec.count(state.batch)
        place, changed = list(part.place), state.batch is not batch
        parts.append(Part(state.outputs, state.batch, state.loss_fn, count, place, changed))
        return state.evolve_unchecked(batch=batch, loss_fn=loss_fn, loss=torch.zeros(()))

    def _differentiate_loss(self, state: State, parts: list[Part]) -> State:
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
            zero_grad(state)  # each process has those of the loss's parameters, which count once
        scale = engine.processes.size if engine.mean_gradients else 1
        for part in parts:
            part.take_gradients(scale, keep_outputs=not self.checks.done)
        return state

    def _differentiate_parts(self, state: State, loss: Tensor, parts: list[Part]) -> State:
        """Compute the vector-Jacobian products of all parts, and reduce them."""
        sums = self.engine.sums(state)
        differentiate = partial(self._differentiate, loss, iter(parts))
        try:
            state = self._each_part(differentiate)(state, sums)
            sums.reduce(state)
            return state
        finally:
            sums.end()

    def _differentiate(
        self,
        loss: Tensor,
        parts: Iterator[Part],
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
        self.checks.compare(state, part.outputs)
        value = loss * part.share
        pairs = part.pairs(state.outputs) or [(_unused(loss), torch.zeros_like(loss))]
        tensors, gradients = zip(*pairs, strict=True)
        first, *others = tensors
        self.engine.backward([sums.joined(first, value), *others], gradients)
        state = state.evolve_unchecked(loss=value, batch=batch, loss_fn=loss_fn)
        return fire(Event.AFTER_BACKWARD, state)


def _unused(like: Tensor) -> Tensor:
    """Return a leaf of a graph, for a backward pass in which only processes exchange gradients."""
    return torch.zeros_like(like, requires_grad=True)


def _merge(
    memory: Mapping[str, Any], seen: Mapping[str, Any], after: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a memory with what algorithms remembered between two states."""
    if after is seen:
        return memory
    changed = {name: value for name, value in after.items() if seen.get(name) is not value}
    return MappingProxyType({**memory, **changed})
