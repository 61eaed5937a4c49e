"""The training loop, beside the pseudocode of `Event`.

    for iteration in iterations:            # train
        for epoch in epochs:                # train_epoch
            for batch in dataloader:        # train_batch
                set rates; step; schedulers; log; evaluate; save

Algorithms act, and callbacks observe, in `fire`. The step is composed in `composable.trainer.step`.
"""

import time
from collections.abc import Iterator
from typing import Any

from composable.core.control import Control
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit, crossed, reached
from composable.data.dead_workers import LOADER_ERRORS, explain_dead_worker
from composable.engines.forward import explain_float16
from composable.optim.stepping import zero_grad
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.parameters import drop_batch, start_training, surgery
from composable.trainer.run import Run
from composable.trainer.step import scheduling
from composable.trainer.training_data import Loaded

# Module globals, since on Python 3.11 reading a member of an Enum costs more than firing it.
BATCH_END = Event.BATCH_END
LOG = Event.LOG
EPOCH = TimeUnit.EPOCH

_END = object()


def start(run: Run, max_duration: Time | None) -> None:
    """Start training, or continue a call of `fit` that was resumed."""
    run.weights.best = None
    run.state = state = run.state.evolve(max_duration=max_duration)
    zero_grad(state)
    if run.progress.fit_in_progress:  # resumed: the algorithms have acted at its start
        run.dispatcher.run_callbacks(Event.FIT_START, state)
        return
    start_training(state)
    run.state = surgery(run.fire, Event.FIT_START, state)
    run.progress.num_fits, run.progress.fit_in_progress = run.progress.num_fits + 1, True


def fit(run: Run, state: State) -> State:
    """Train, and after a loss that is not finite roll back to the last checkpoint if requested."""
    while True:
        try:
            return train(run, state)
        except NonFiniteLossError as error:
            state = run.checkpoints.roll_back(error)
            run.compose()
            zero_grad(state)
        except LOADER_ERRORS as error:
            explain_dead_worker(error, run.data.loader)
            explain_float16(error, state)
            raise


def train(run: Run, state: State) -> State:
    """Train until `state.max_duration`, or until a callback requests the end."""
    if finished(run, state) and state.timestamp.batch_in_epoch == state.epoch_length:
        state = train_epoch(run, state)  # an interruption came before its end
    if state.timestamp.epoch_in_iteration == run.iteration_length:
        state = end_iteration(run, state)  # likewise
    while not finished(run, state):
        if state.timestamp.epoch_in_iteration == state.timestamp.batch_in_epoch == 0:
            state = run.fire(Event.ITERATION_START, state)
        state = train_epoch(run, state)
        if state.timestamp.epoch_in_iteration == run.iteration_length:
            state = end_iteration(run, state)
        if run.signals.received is not None:
            run.interrupt(state)
    run.guard.flush()
    state = drop_batch(state)
    now = state.timestamp
    if run.iteration_length is None and now.epoch_in_iteration and not now.batch_in_epoch:
        state = end_iteration(run, state)
    state = run.evaluate_end(state)
    state = run.checkpoints.save_end(state)
    return run.fire(Event.FIT_END, state)


def finished(run: Run, state: State) -> bool:
    """Return whether training is over, or a callback requested its end."""
    if run.dispatcher.pending and Control.STOP in run.dispatcher.requests:
        return True
    whole = state.max_duration
    if whole is None:
        return False
    if whole.unit is EPOCH:  # an epoch ends with the loader, whatever its length
        return state.timestamp.epoch >= whole.value
    return reached(state, whole)


def train_epoch(run: Run, state: State) -> State:
    """Train on the batches of the loader, or on the remaining ones."""
    if state.timestamp.batch_in_epoch == 0:
        state = surgery(run.fire, Event.EPOCH_START, state)
    elif run.dispatcher.pop(Control.END_EPOCH):  # requested before an interruption
        return end_epoch(run, state)
    run.rates.optimizers = state.optimizers  # an algorithm may have replaced them
    run.rates.check_epoch()
    complete = state.timestamp.batch_in_epoch == state.epoch_length
    batches, over = run.data.batches(state), complete and finished(run, state)
    begin, seconds = run.dispatcher.firing(Event.BEFORE_DATALOADER), run.seconds
    while True:
        started = time.perf_counter()
        if begin is not None:
            state = begin(drop_batch(state))
        loaded = next_batch(run, state, batches)
        seconds["data"] += time.perf_counter() - started
        if loaded is _END:
            return end_epoch(run, state)
        if over:
            return state  # the loader has more batches than its length says
        run.state = state = train_batch(run, state, loaded, started)
        if run.signals.received is not None:
            run.interrupt(state)
        if run.dispatcher.pending and run.dispatcher.pop(Control.END_EPOCH):
            return end_epoch(run, state)
        over = finished(run, state)
        if over and state.timestamp.batch_in_epoch != state.epoch_length:
            run.data.pause()
            return state  # a later fit continues in this epoch


def next_batch(run: Run, state: State, batches: Iterator[Loaded]) -> Any:
    """Return the next batch or `_END`; end the run if a signal has ended the loader's workers."""
    try:
        return next(batches, _END)
    except LOADER_ERRORS:
        if run.signals.received is not None:
            run.interrupt(state)
        raise


def train_batch(run: Run, state: State, loaded: Loaded, started: float) -> State:
    """Set its learning rates, train on a batch, and then log, evaluate and save what is due."""
    rates, before = run.rates, state
    logs = run.dispatcher.logger.destinations
    batch, samples, tokens = loaded
    state = state.evolve_unchecked(batch=batch, outputs=None, losses={})
    if run.begin_batch is not None:
        state = run.begin_batch(state)
    if logs:
        rates.record()
    state = run.step(state)
    agreed = run.engine.seconds
    seconds = time.perf_counter() - started if agreed is None else agreed
    state = state.evolve_unchecked(
        timestamp=state.timestamp.next_batch(samples, tokens, seconds),
        previous_timestamp=before.timestamp,
        loss_fn=before.loss_fn,
    )
    if run.flops_counter is not None:
        state = run.count_flops(run.flops_counter, state)
    if run.step_schedulers is not None:
        state = run.step_schedulers(state)
    if run.batch_end is not None:
        state = run.batch_end(state)
    run.unlogged.update(state.losses)
    if logs or run.updates:
        state = log(run, before, state)
    if run.engine.has_shards:
        run.join_requests(LOG)
    run.state = state  # an interruption from here on keeps the batch
    if run.evaluation.evaluators or run.dispatcher.pending:
        state = run.evaluate_due(before, state, BATCH_END)
    if run.batch_checkpoint is not None:
        state = run.batch_checkpoint(state)
    return run.checkpoints.save_requested(state) if run.dispatcher.pending else state


def end_epoch(run: Run, state: State) -> State:
    """Count the epoch, and then schedule, log, evaluate and save what is due."""
    if state.timestamp.batch_in_epoch == 0:
        raise ValueError(
            f"train_dataloader returned no batch in epoch {state.timestamp.epoch}; check the "
            "dataset, and that the loader can be iterated more than once."
        )
    before = state = drop_batch(state)
    state = state.evolve(timestamp=state.timestamp.next_epoch())
    if run.dispatcher.logger.destinations or run.updates:  # an epoch of unknown length ends
        state = log(run, before, state)
    if run.rates.every_epoch:
        state = scheduling(run.dispatcher.firing, run.rates.steps_of_epoch())(state)
    run.state = state  # an interruption from here on keeps the end of the epoch
    run.data.end_epoch()
    run.state = state = run.fire_joined(Event.EPOCH_END, state)
    state = run.evaluate_due(before, state, Event.EPOCH_END)
    if run.rates.plateaus and run.evaluation.is_current(run.evaluators[0], state):
        loss = state.metrics[run.evaluators[0].label]["loss"]
        steps = run.rates.steps_of_plateaus(loss)
        state = scheduling(run.dispatcher.firing, steps)(state)
    return run.checkpoints.save_requested(run.fire_joined(Event.EPOCH_CHECKPOINT, state))


def end_iteration(run: Run, state: State) -> State:
    """Count the iteration, and save if requested."""
    state = state.evolve(timestamp=state.timestamp.next_iteration())
    state = run.fire_joined(Event.ITERATION_END, state)
    return run.checkpoints.save_requested(run.fire_joined(Event.ITERATION_CHECKPOINT, state))


def log(run: Run, before: State, state: State) -> State:
    """Log loss and learning rates if due or requested.

    Processes without loggers forget the losses of updates, too: all save the same ones.
    """
    requested = run.dispatcher.pending and run.dispatcher.pop(Control.LOG)
    if run.logs_each_batch:
        due = state.timestamp.batch != before.timestamp.batch
    else:
        due = crossed(before, state, run.log_interval)
    if not (requested or due):
        return state
    losses = {"loss/train": state.loss}
    if run.updates:
        losses = {f"loss/train/{name}": value for name, value in run.unlogged.items()}
        run.unlogged.clear()
    if not run.dispatcher.logger.destinations:
        return state
    metrics = {**losses, **run.rates.last_lrs}
    run.dispatcher.logger.log_metrics(metrics, state.timestamp)
    return run.fire(LOG, state)
