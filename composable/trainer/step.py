"""One training step, from `BATCH_START` to `AFTER_ZERO_GRAD`, composed of functions of the state.

    step = start(skip(optimizer_step(fit_memory(second_pass(unscale(accumulate(
        forward_backward
    )))))))

What a run does not need is not composed in: without microbatches nothing splits a batch, without
`microbatch_size="auto"` nothing catches an out-of-memory error, and where no algorithm or callback
listens between the forward and the backward pass, nothing builds the states that it would see.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from composable.core.event import Event
from composable.core.loss import check_loss
from composable.core.state import State
from composable.optim.learning_rates import LearningRates
from composable.optim.stepping import OptimizerSteps
from composable.plan.dispatch import Dispatcher
from composable.trainer.forward import ForwardPass
from composable.trainer.guards import (
    Buffers,
    NonFiniteGuard,
    skip_listed,
    skip_nonfinite,
)
from composable.trainer.loss_scaler import LossScaler, skip_overflow, unscale_gradients
from composable.trainer.loss_shares import LossShares, StepShares, times, without_nothing
from composable.trainer.microbatches import Microbatches, accumulate, each_batch, fit_memory
from composable.trainer.parallel import Parallel, reduce_gradients
from composable.trainer.parameters import (
    frozen_parameters,
    temporary_weights,
    write_gradients,
    zero_grad,
)
from composable.utils.reproducibility import seed_step

__all__ = ["Step", "build_step"]

Step: TypeAlias = Callable[[State], State]
Gradients: TypeAlias = Callable[..., State]
Fire: TypeAlias = Callable[[Event, State], State]
Watched: TypeAlias = AbstractContextManager[Any]

_NOTHING: Watched = nullcontext()

# Module globals, since on Python 3.11 reading a member of an Enum costs more than firing it.
BATCH_START = Event.BATCH_START
BEFORE_TRAIN_BATCH = Event.BEFORE_TRAIN_BATCH
BEFORE_FORWARD = Event.BEFORE_FORWARD
AFTER_FORWARD = Event.AFTER_FORWARD
BEFORE_LOSS = Event.BEFORE_LOSS
AFTER_LOSS = Event.AFTER_LOSS
BEFORE_BACKWARD = Event.BEFORE_BACKWARD
AFTER_BACKWARD = Event.AFTER_BACKWARD
AFTER_TRAIN_BATCH = Event.AFTER_TRAIN_BATCH
BEFORE_OPTIMIZER_STEP = Event.BEFORE_OPTIMIZER_STEP
AFTER_OPTIMIZER_STEP = Event.AFTER_OPTIMIZER_STEP
BEFORE_ZERO_GRAD = Event.BEFORE_ZERO_GRAD
AFTER_ZERO_GRAD = Event.AFTER_ZERO_GRAD


def build_step(  # noqa: PLR0913  # the parts of a step
    dispatcher: Dispatcher,
    rates: LearningRates,
    shares: LossShares,
    microbatches: Microbatches,
    guard: NonFiniteGuard,
    forward: ForwardPass,
    scaler: LossScaler,
    parallel: Parallel | None = None,
    fetch_ahead: Callable[[], None] | None = None,
) -> Step:
    """Compose the step of a run.

    Args:
        dispatcher: Fires the events.
        rates: The learning rates, which an algorithm may override for one step.
        shares: The shares of the parts of a batch in its loss.
        microbatches: How batches are split.
        guard: Checks the loss before the optimizers step.
        forward: Computes outputs and losses.
        scaler: Scales losses, if the precision needs it.
        parallel: The processes that share a batch, if there are several.
        fetch_ahead: Fetches the next batch, while a GPU computes the gradients of this one.
    """
    fire = dispatcher.fire
    fire_each = each_batch(fire) if microbatches.groups else fire
    engine = None if parallel is None else parallel.engine
    backward = scaler.backward if scaler.enabled else Tensor.backward
    if engine is not None:
        backward = engine.backward
    gradients: Gradients = forward_backward(
        fire,
        computes_loss(dispatcher, forward),
        backward,
        None if parallel is None else parallel.begin_backward,
    )
    if microbatches.split:
        equal = None if parallel is None else parallel.equal_count
        gradients = accumulate(gradients, microbatches, shares, equal)
    if parallel is not None:
        gradients = reduce_gradients(gradients, parallel, shares, microbatches)
    if fetch_ahead is not None:
        gradients = followed_by(gradients, fetch_ahead)
    if scaler.enabled:
        gradients = unscale_gradients(gradients, scaler, guard)
    gradients = second_pass(gradients)
    if microbatches.auto and parallel is None:
        gradients = fit_memory(gradients, microbatches)
    update = update_weights(fire, None if engine is None else engine.step)
    step = optimizer_step(dispatcher, fire_each, rates, gradients, guard, update)
    if scaler.enabled:
        step = skip_overflow(step, dispatcher, scaler)
    if guard.policy == "skip":
        step = skip_nonfinite(step, dispatcher, guard)
    if guard.policy == "rollback" or guard.skipped_batches:
        step = skip_listed(step, guard)
    return lambda state: step(fire(BATCH_START, state))


# --- gradients ---


def computes_loss(
    dispatcher: Dispatcher, forward: ForwardPass
) -> Callable[..., tuple[State, Any, Tensor, Tensor]]:
    """Return the forward pass and the loss, with the events in between if anything listens.

    The result is the state, the outputs, the loss of the loss function, and the loss after the
    events.
    """
    fire, outputs_of, loss_of = dispatcher.fire, forward.outputs, forward.loss

    def observed(
        state: State, around_outputs: Watched = _NOTHING, around_loss: Watched = _NOTHING
    ) -> tuple[State, Any, Tensor, Tensor]:
        with around_outputs:
            outputs = outputs_of(state)
        state = fire(AFTER_FORWARD, state.evolve_unchecked(outputs=outputs))
        state = fire(BEFORE_LOSS, state)
        with around_loss:
            loss = check_loss(loss_of(state, state.outputs))
            state = fire(AFTER_LOSS, state.evolve_unchecked(loss=loss))
            state = fire(BEFORE_BACKWARD, state)
        return state, state.outputs, loss, state.loss  # type: ignore[return-value]

    def unobserved(
        state: State, around_outputs: Watched = _NOTHING, around_loss: Watched = _NOTHING
    ) -> tuple[State, Any, Tensor, Tensor]:
        with around_outputs:
            outputs = outputs_of(state)
        with around_loss:
            loss = check_loss(loss_of(state, outputs))
        return state, outputs, loss, loss

    between = (AFTER_FORWARD, BEFORE_LOSS, AFTER_LOSS, BEFORE_BACKWARD)
    return observed if any(map(dispatcher.listens, between)) else unobserved


def forward_backward(
    fire: Fire,
    compute_loss: Callable[..., tuple[State, Any, Tensor, Tensor]],
    backward: Callable[[Tensor], Any],
    before_backward: Callable[[bool], None] | None = None,
) -> Gradients:
    """Compute the gradients of one microbatch: `BEFORE_FORWARD` to `AFTER_BACKWARD`.

    Args:
        fire: Fires the events.
        compute_loss: Computes the loss.
        backward: Computes the gradients of the loss.
        before_backward: Called with whether the microbatch is the last one of the step.
    """

    def microbatch(
        state: State,
        index: int = 0,
        shares: StepShares | None = None,
        last: bool = True,
        empty: bool = False,
    ) -> State:
        batch, loss_fn, share = state.batch, state.loss_fn, None
        state = fire(BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, index)
        if shares is None:
            state, outputs, _, loss = compute_loss(state)
        else:
            state, outputs, loss, share = shares.compute(compute_loss, state, batch, empty=empty)
            loss = times(loss, share)
        if before_backward is not None:
            before_backward(last)
        backward(loss)
        if share is not None:
            loss = without_nothing(loss, share)
        state = state.evolve_unchecked(
            outputs=outputs, loss=loss.detach(), batch=batch, loss_fn=loss_fn
        )
        return fire(AFTER_BACKWARD, state)

    return microbatch


def second_pass(gradients: Gradients) -> Gradients:
    """Compute the gradients again at other weights, if an algorithm requests it.

    Everything else is that of the first pass: the loss, the memory, the running statistics.
    """

    def passes(state: State) -> State:
        if state.second_pass is None:
            return gradients(state)
        before = Buffers.of(state)
        first = gradients(state)
        after = Buffers.of(state)
        weights = state.second_pass(first)
        zero_grad(first)
        before.restore()  # both passes start alike, for a layer that counts its calls
        try:
            with temporary_weights(dict(state.named_parameters()), weights):
                del weights  # frees one copy of the parameters
                second = gradients(state)
        finally:
            after.restore()
        # A second loss that is not finite has such gradients, and the guard looks at the loss.
        finite = second.loss.isfinite()  # type: ignore[union-attr]
        loss = torch.where(finite, first.loss, second.loss)  # type: ignore[arg-type]
        return first.evolve(loss=loss, gradients=second.gradients, second_pass=None)

    return passes


def followed_by(gradients: Gradients, then: Callable[[], None]) -> Gradients:
    """Compute the gradients, and then call a function: before anything waits for them."""

    def computed(state: State) -> State:
        state = gradients(state)
        then()
        return state

    return computed


# --- the optimizers ---


def optimizer_step(
    dispatcher: Dispatcher,
    fire_each: Fire,
    rates: LearningRates,
    gradients: Gradients,
    guard: NonFiniteGuard,
    update: Step,
) -> Step:
    """Compute gradients, check the loss, and step: `BEFORE_TRAIN_BATCH` to `AFTER_ZERO_GRAD`."""
    fire = dispatcher.fire
    check = None if guard.policy == "ignore" else guard.check

    def step(state: State) -> State:
        outer, state = state, fire_each(BEFORE_TRAIN_BATCH, state)
        if not state.frozen:
            return train(outer, state)
        with frozen_parameters(state):
            state = train(outer, state)
        return state.evolve_unchecked(frozen=frozenset())

    def train(outer: State, state: State) -> State:
        state = fire(AFTER_TRAIN_BATCH, gradients(state))
        if state.batch is not outer.batch or state.loss_fn is not outer.loss_fn:
            state = state.evolve_unchecked(batch=outer.batch, loss_fn=outer.loss_fn)
        if check is not None:
            check(state)
        state = fire(BEFORE_OPTIMIZER_STEP, state)
        if state.gradients is not None:
            write_gradients(state)
        if state.lr_override is None:
            return update(state)
        with rates.override(state.lr_override):
            if dispatcher.logger.destinations:
                rates.record()
            return update(state.evolve_unchecked(lr_override=None))

    return step


def update_weights(fire: Fire, engine_step: Callable[[State], None] | None = None) -> Step:
    """Step the optimizers, then drop the gradients: up to `AFTER_ZERO_GRAD`.

    Args:
        fire: Fires the events.
        engine_step: Steps in their place.
    """
    step_optimizers = OptimizerSteps()

    def update(state: State) -> State:
        if engine_step is None:
            step_optimizers(state.optimizers)
        else:
            engine_step(state)
        state = fire(AFTER_OPTIMIZER_STEP, state)
        state = fire(BEFORE_ZERO_GRAD, state)
        zero_grad(state)
        if state.gradients is not None:
            state = state.evolve_unchecked(gradients=None)
        return fire(AFTER_ZERO_GRAD, state)

    return update
