"""One training step, from `BATCH_START` to `AFTER_ZERO_GRAD`, composed of functions of the state.

    step = start(skip(optimizer_step(fit_memory(second_pass(unscale(each_part(
        forward_backward
    )))))))

What a run does not need is not composed in: without microbatches nothing splits a batch, without
`microbatch_size="auto"` nothing catches an out-of-memory error, and where no algorithm or callback
listens between the forward and the backward pass, nothing builds the states that it would see.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from composable.core.event import Event
from composable.core.state import State
from composable.data.grouping import each_batch
from composable.engines.engine import Sums
from composable.engines.forward import ForwardPass
from composable.engines.modules import Buffers, computing_again, write_gradients
from composable.engines.scaled import LossScaler, skip_overflow, unscale_gradients
from composable.engines.shares import times, without_nothing
from composable.losses.loss import check_loss
from composable.optim.learning_rates import LearningRates
from composable.optim.stepping import needs_closure, zero_grad
from composable.plan.dispatch import Dispatcher
from composable.trainer.guards import skip_batches
from composable.trainer.microbatches import (
    WHOLE,
    Microbatch,
    fit_memory,
    sum_gradients,
)
from composable.trainer.parameters import frozen_parameters, temporary_weights
from composable.trainer.whole_loss import whole_loss
from composable.utils.reproducibility import seed_step

if TYPE_CHECKING:
    from composable.trainer.train_metrics import TrainMetrics
    from composable.trainer.updates import UpdateStep


Step: TypeAlias = Callable[[State], State]
Gradients: TypeAlias = Callable[..., State]
At: TypeAlias = Callable[[Event], Step | None]
Watched: TypeAlias = AbstractContextManager[Any]

_NOTHING: Watched = nullcontext()
_KEY = attrgetter("key")


def build_step(run: Any) -> Step:
    """Compose the step of a `Run`: of one loss, or of its updates."""
    rates, dispatcher = run.rates, run.dispatcher
    if run.updates:
        from composable.trainer.updates import each_update  # on use

        step = each_update(run, partial(step_of_loss, run))
    else:
        closure = any(map(needs_closure, rates.optimizers))
        step = step_of_loss(run, run.engine.scaler, closure=closure)
    return compose(dispatcher.firing(Event.BATCH_START), skip_batches(step, dispatcher, run.guard))


def step_of_loss(
    run: Any, scaler: LossScaler, *, closure: bool, update: "UpdateStep | None" = None
) -> Step:
    """Compose the step of one loss, from `BEFORE_TRAIN_BATCH` to `AFTER_ZERO_GRAD`.

    Args:
        run: The `Run`, whose parts the step uses.
        scaler: Scales the loss, if the precision needs it.
        closure: Whether the optimizer computes gradients again.
        update: The update whose loss it is, if there are several.
    """
    dispatcher, engine, guard = run.dispatcher, run.engine, run.guard
    microbatches, metrics = run.microbatches, run.train_metrics
    # The next batch is fetched while a GPU computes the gradients of this one, or before several
    # processes send gradients and what they have fetched.
    ahead = run.data.copies is not None and update is None
    fetch_ahead = run.data.fetch_ahead if ahead else None
    at, algorithms = dispatcher.firing, dispatcher.plan.algorithms
    measure = None if metrics is None else metrics.measure
    backward = scaler.backward if scaler.enabled else engine.backward
    gradients = forward_backward(at, computes_loss(at, engine.forward), backward, measure, update)
    gradients = sum_gradients(gradients, engine, microbatches)
    if algorithms and microbatches.split:
        gradients = whole_loss(gradients, dispatcher, engine, microbatches, measure)
    order = (fetch_ahead, gradients) if engine.carries else (gradients, fetch_ahead)
    gradients = compose(*order)
    if scaler.enabled:
        gradients = unscale_gradients(gradients, scaler, guard.check and guard.check_now)
    if algorithms:
        gradients = second_pass(gradients, metrics)
    if microbatches.auto and not engine.has_shards:
        gradients = fit_memory(gradients, microbatches)
    if update is not None:
        gradients = compose(gradients, update.check_gradients)
    step_optimizers = engine.step
    if closure:
        from composable.trainer.closures import ClosureSteps  # on use

        again = ClosureSteps(gradients, dispatcher, metrics)
        gradients, step_optimizers = again.gradients, again.step
    begin = at(Event.BEFORE_TRAIN_BATCH)
    if microbatches.groups and begin is not None:
        begin = partial(each_batch(dispatcher.fire), Event.BEFORE_TRAIN_BATCH)
    todo = (
        begin,
        compose(gradients, at(Event.AFTER_TRAIN_BATCH)),
        guard.check,
        at(Event.BEFORE_OPTIMIZER_STEP),
        compose(
            None if metrics is None else metrics.accept,
            step_optimizers,
            at(Event.AFTER_OPTIMIZER_STEP),
            at(Event.BEFORE_ZERO_GRAD),
            zero_grad,
            drop_requests if algorithms else None,
            at(Event.AFTER_ZERO_GRAD),
        ),
    )
    step = optimizer_step(dispatcher, run.rates, *todo)
    if not algorithms:
        step = unless_requested(compose(*todo), compose(step, drop_requests))
    return skip_overflow(step, dispatcher, scaler) if scaler.enabled else step


def compose(*functions: Step | None) -> Step:
    """Compose functions of the state, in this order; None stands for nothing to do."""
    todo = tuple(one for one in functions if one is not None)
    if len(todo) == 1:
        return todo[0]

    def chained(state: State) -> State:
        for function in todo:
            state = function(state)
        return state

    return chained


# --- gradients ---


def computes_loss(at: At, forward: ForwardPass) -> Callable[..., tuple[State, Any, Tensor, Tensor]]:
    """Return the forward pass and the loss, with the events in between; in external loops too.

    The result is the state, the outputs, the loss of the loss function, and the loss after the
    events. If nothing listens to the events, the states that a listener would see are not built.

    Args:
        at: Returns what fires an event, or None if nothing listens.
        forward: Computes outputs and losses.
    """
    outputs_of, loss_of = forward.outputs, forward.loss
    events = at(Event.AFTER_FORWARD), at(Event.BEFORE_LOSS)
    events_of_loss = at(Event.AFTER_LOSS), at(Event.BEFORE_BACKWARD)
    observed = any((*events, *events_of_loss))
    with_outputs = compose(*events)
    with_loss = compose(*events_of_loss) if any(events_of_loss) else None

    def computed(
        state: State, around_outputs: Watched = _NOTHING, around_loss: Watched = _NOTHING
    ) -> tuple[State, Any, Tensor, Tensor]:
        with around_outputs:
            outputs = outputs_of(state)
        if not observed:
            with around_loss:
                loss = loss_of(state, outputs)
            check_loss(loss)  # beside a watch, which sees each look at the tensor
            return state, outputs, loss, loss
        state = with_outputs(state.evolve_unchecked(outputs=outputs))
        with around_loss:
            loss = check_loss(loss_of(state, state.outputs))
            if with_loss is None:
                return state, state.outputs, loss, loss
            state = with_loss(state.evolve_unchecked(loss=loss))
        return state, state.outputs, loss, state.loss  # type: ignore[return-value]

    return computed


def forward_backward(
    at: At,
    compute_loss: Callable[..., tuple[State, Any, Tensor, Tensor]],
    backward: Callable[[Tensor], Any],
    measure: Callable[..., None] | None = None,
    update: "UpdateStep | None" = None,
) -> Gradients:
    """Compute the gradients of one microbatch: `BEFORE_FORWARD` to `AFTER_BACKWARD`.

    Args:
        at: Returns what fires an event, or None if nothing listens.
        compute_loss: Computes the loss.
        backward: Computes the gradients of the loss.
        measure: Measures the outputs.
        update: The update whose loss it is.
    """
    key_of = _KEY if update is None else update.key_of
    before, after = at(Event.BEFORE_FORWARD), at(Event.AFTER_BACKWARD)

    def microbatch(state: State, sums: Sums | None = None, part: Microbatch = WHOLE) -> State:
        batch, loss_fn = state.batch, state.loss_fn
        if before is not None:
            state = before(state)
        given = state
        seed_step(key_of(state), state.timestamp.batch, part.place[-1])
        if sums is not None:
            sums.begin_part(part.last)
        share: Any = 1.0
        if sums is None or sums.shares is None:
            state, outputs, _, loss = compute_loss(state)
            value = loss
        else:
            state, outputs, loss, share = sums.shares.compute(
                compute_loss, state, batch, empty=part.empty
            )
            loss = times(loss, share)
            value = without_nothing(loss, share)
        if measure is not None and not part.empty:
            measure(given, outputs, part.place)
        if update is not None:
            state = update.add_terms(state, outputs, share)
        backward(loss if sums is None else sums.joined(loss, value))
        state = state.evolve_unchecked(
            outputs=outputs, loss=value.detach(), batch=batch, loss_fn=loss_fn
        )
        return state if after is None else after(state)

    return microbatch


def second_pass(gradients: Gradients, metrics: "TrainMetrics | None" = None) -> Gradients:
    """Compute the gradients again at other weights, if an algorithm requests it.

    Everything else is taken from the first pass: the loss, the memory, the running statistics, and
    what `metrics` measures.
    """

    def passes(state: State) -> State:
        if state.second_pass is None:
            return gradients(state)
        before = Buffers.of(state)
        first = gradients(state)
        weights = state.second_pass(first)
        with (
            computing_again(first, before, metrics),
            temporary_weights(dict(state.named_parameters()), weights),
        ):
            del weights  # frees one copy of the parameters
            second = gradients(state)
        # A second loss that is not finite has such gradients, and the guard looks at the loss.
        finite = second.loss.isfinite()  # type: ignore[union-attr]
        loss = torch.where(finite, first.loss, second.loss)  # type: ignore[arg-type]
        return first.evolve(loss=loss, gradients=second.gradients, second_pass=None)

    return passes


# --- the optimizers ---


def optimizer_step(
    dispatcher: Dispatcher,
    rates: LearningRates,
    begin: Step | None,
    gradients: Step,
    check: Step | None,
    change: Step | None,
    update: Step,
) -> Step:
    """Compute gradients, check the loss, and step: `BEFORE_TRAIN_BATCH` to `AFTER_ZERO_GRAD`.

    The batch may be replaced and requests may be made in between, as algorithms do.

    Args:
        dispatcher: It has the loggers.
        rates: The learning rates.
        begin: Fires `BEFORE_TRAIN_BATCH`, if anything listens.
        gradients: Computes the gradients.
        check: Checks the loss, if losses are checked.
        change: Fires `BEFORE_OPTIMIZER_STEP`, if anything listens.
        update: Steps the optimizers, and drops the gradients.
    """

    def step(state: State) -> State:
        outer, state = state, state if begin is None else begin(state)
        if not state.frozen:
            return train(outer, state)
        with frozen_parameters(state):
            state = train(outer, state)
        return state.evolve_unchecked(frozen=frozenset())

    def train(outer: State, state: State) -> State:
        state = gradients(state)
        if state.batch is not outer.batch or state.loss_fn is not outer.loss_fn:
            state = state.evolve_unchecked(batch=outer.batch, loss_fn=outer.loss_fn)
        if check is not None:
            check(state)
        if change is not None:
            state = change(state)
        if state.gradients is not None:
            write_gradients(state)
        if state.lr_override is None:
            return update(state)
        with rates.override(state.lr_override):
            if dispatcher.logger.destinations:
                rates.record()
            return update(state.evolve_unchecked(lr_override=None))

    return step


def unless_requested(plain: Step, step: Step) -> Step:
    """Take a plain step, unless the state has requests, as in `Trainer.train_batch`."""

    def stepped(state: State) -> State:
        requests = state.frozen or state.lr_override is not None or state.gradients is not None
        return step(state) if requests else plain(state)

    return stepped


def drop_requests(state: State) -> State:
    """Drop the gradients that an algorithm has changed, and its request of a loss of the whole."""
    if state.gradients is None and not state.whole_loss:
        return state
    return state.evolve_unchecked(gradients=None, whole_loss=False)


def scheduling(at: At, steps: Sequence[Callable[[State], None]]) -> Step:
    """Set the learning rates for the next batches: by each PyTorch scheduler, or all schedules.

    Args:
        at: Returns what fires an event, or None if nothing listens.
        steps: What sets learning rates at the time of a state.
    """
    before, after = at(Event.BEFORE_SCHEDULER_STEP), at(Event.AFTER_SCHEDULER_STEP)

    def scheduled(state: State) -> State:
        for step in steps:
            if before is not None:
                state = before(state)
            step(state)
            if after is not None:
                state = after(state)
        return state

    return scheduled
