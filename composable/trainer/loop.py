"""The training loop: it fires events, calls the model, and obeys requests.

Read it next to the pseudocode of `Event`, which it follows line by line. Everything that changes
training happens in `fire`; the in-place updates are four: `backward` writes gradients,
`optimizer.step` writes parameters, normalisation layers write their statistics, and for the time
of a step the parameters in `state.frozen` require no gradient. Where an algorithm asks for a second
pass, parameters hold other values during it, and then the same again.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.batch import count_examples, microbatch_sizes, split_batch, to_device
from composable.core.control import Control
from composable.core.event import Event
from composable.core.loss import check_loss
from composable.core.state import State
from composable.core.time import Time, TimeUnit, crossed, reached
from composable.data.order import get_generator_states, seeded_batches
from composable.metrics import Evaluator
from composable.optim.learning_rates import LearningRates
from composable.plan.dispatch import Dispatcher
from composable.trainer.evaluation import evaluate
from composable.trainer.guards import (
    Buffers,
    NonFiniteGuard,
    NonFiniteLossError,
    explain_dead_worker,
    halved,
    interruption,
)
from composable.trainer.parameters import (
    at_weights,
    between_batches,
    freeze,
    surgery,
    thaw,
    write_gradients,
)
from composable.utils.reproducibility import seed_step

__all__ = ["Loop", "UnsupportedRequestWarning"]

_EXHAUSTED = object()
_TORCHS_ZERO_GRAD = torch.optim.Optimizer.zero_grad

# The events of a step: on Python 3.11 an attribute of an Enum costs more than firing it.
BEFORE_DATALOADER = Event.BEFORE_DATALOADER
AFTER_DATALOADER = Event.AFTER_DATALOADER
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
BEFORE_SCHEDULER_STEP = Event.BEFORE_SCHEDULER_STEP
AFTER_SCHEDULER_STEP = Event.AFTER_SCHEDULER_STEP
BATCH_END = Event.BATCH_END
BATCH_CHECKPOINT = Event.BATCH_CHECKPOINT


class UnsupportedRequestWarning(UserWarning):
    """A callback asked for something that this run can't do."""


@attrs.define(eq=False)
class Loop:
    """What a run needs besides its state, and how it goes. The `Trainer` checks and fills it in.

    `state` is that of the last finished batch: what is left of a run that was interrupted.
    """

    dispatcher: Dispatcher
    state: State
    rates: LearningRates
    weigh: Callable[[Any], Any]
    loader: Iterable[Any] | None
    evaluators: tuple[Evaluator, ...]
    parts: int | None
    size: int | None
    log_interval: Time
    iteration_length: int | None
    count_tokens: Callable[[Any], int] | None
    saver: Callable[[State], Any] | None
    given_duration: Time | None = None
    """The `max_duration` that the user gave, before any algorithm changed it."""
    fits: int = 0
    """How often training began, the present one included."""
    fitting: bool = False
    """Whether training goes on."""
    watch: NonFiniteGuard = attrs.field(factory=lambda: NonFiniteGuard("ignore", at_once=False))
    """Looks for losses that are not finite."""
    rewind: Callable[[NonFiniteLossError], State] | None = None
    """Goes back to the last checkpoint."""
    finds_size: bool = False
    """Whether `size` is what fits into memory."""
    loader_state: Any = None
    """Where a loader with a state of its own was when the run was saved."""
    generators: list[Tensor] | None = None
    """What the loader's own generators were when the epoch began; None between two epochs."""
    signal: int | None = None
    """A signal that asks the run to end."""
    saves_at_the_end: bool = False
    """Whether the end of training is saved, where it isn't yet."""
    saved_at: Any = None
    """What was done when the run was last saved."""
    moves: bool = attrs.field(init=False)
    """Whether batches go to another device. A loader's own are on the CPU."""
    fire: Callable[[Event, State], State] = attrs.field(init=False)
    rates_used: dict[str, Any] = attrs.field(init=False, factory=dict)
    """The learning rates of the last batch, where there are loggers."""
    evaluated_at: dict[str, int] = attrs.field(init=False, factory=dict)
    """By evaluator: the batch after which it was last run."""

    def __attrs_post_init__(self) -> None:
        self.fire = self.dispatcher.fire
        self.moves = self.state.device.type != "cpu"

    # --- training ---

    def fit(self, state: State) -> State:
        """Train until `state.max_duration`, or until somebody asks to stop."""
        while True:
            try:
                return self.train(state)
            except NonFiniteLossError as error:
                if self.rewind is None:
                    raise
                self.watch.roll_back(error)
                state = self.rewind(error)
                zero_grad(state)
            except (RuntimeError, ConnectionError, EOFError) as error:
                explain_dead_worker(error, self.loader)  # its signal comes at any line
                raise

    def train(self, state: State) -> State:
        """Train on all that is left."""
        if self.finished(state) and state.timestamp.batch_in_epoch == state.epoch_length:
            state = self.epoch(state)  # which an interruption kept from ending
        if state.timestamp.epoch_in_iteration == self.iteration_length:
            state = self.end_iteration(state)  # likewise
        while not self.finished(state):
            now = state.timestamp
            if now.epoch_in_iteration == 0 and now.batch_in_epoch == 0:
                state = self.fire(Event.ITERATION_START, state)
            state = self.epoch(state)
            if state.timestamp.epoch_in_iteration == self.iteration_length:
                state = self.end_iteration(state)
            if self.signal is not None:
                self.leave(state)
        self.watch.look()
        state = between_batches(state)
        now = state.timestamp
        if self.iteration_length is None and now.epoch_in_iteration and not now.batch_in_epoch:
            state = self.end_iteration(state)
        state = self.evaluate_at_the_end(state)
        state = self.save_at_the_end(state)
        return self.fire(Event.FIT_END, state)

    def epoch(self, state: State) -> State:
        """Train on the batches of the loader, or on those that are left of them."""
        if state.timestamp.batch_in_epoch == 0:
            state = surgery(self.fire, Event.EPOCH_START, state)
        elif self.dispatcher.pop(Control.END_EPOCH):  # asked for, and then interrupted
            return self.end_epoch(state)
        if state.optimizers is not self.rates.optimizers:  # an algorithm brought others
            self.rates = attrs.evolve(self.rates, optimizers=state.optimizers)
        self.rates.set(state)
        complete = state.timestamp.batch_in_epoch == state.epoch_length
        batches, over = self.batches(state), complete and self.finished(state)
        listens = self.dispatcher.listens(BEFORE_DATALOADER)
        while True:
            started = time.perf_counter()
            if listens:
                state = self.fire(BEFORE_DATALOADER, between_batches(state))
            batch = next(batches, _EXHAUSTED)
            if batch is _EXHAUSTED:
                break
            if over:
                return state  # the loader has more than its length says
            self.state = state = self.batch(state, batch, started)
            if self.signal is not None:
                self.leave(state)
            if self.dispatcher.pending and self.dispatcher.pop(Control.END_EPOCH):
                break
            if self.finished(state):
                if state.timestamp.batch_in_epoch != state.epoch_length:
                    return state  # in the middle of an epoch: a later fit goes on from here
                over = True
        return self.end_epoch(state)

    def batch(self, state: State, batch: Any, started: float) -> State:
        """Train on one batch, and do what is due after it."""
        fire, before = self.fire, state
        tokens = self.count_tokens(batch) if self.count_tokens else 0
        if self.moves:
            batch = to_device(batch, state.device)
        state = state.evolve(batch=batch, outputs=None)
        samples = count_examples(state.batch_spec.inputs(batch))
        state = fire(AFTER_DATALOADER, state)
        if self.dispatcher.logger.destinations:
            self.rates_used = self.rates.read()
        state = self.train_batch(state)
        now = state.timestamp.next_batch(samples, tokens, time.perf_counter() - started)
        state = state.evolve(
            timestamp=now, previous_timestamp=before.timestamp, loss_fn=before.loss_fn
        )
        if self.rates.steps_each_batch:
            state = fire(BEFORE_SCHEDULER_STEP, state)
            self.rates.step_batch(state)
            state = fire(AFTER_SCHEDULER_STEP, state)
        state = fire(BATCH_END, state)
        if self.dispatcher.logger.destinations:
            state = self.log(before, state)
        self.state = state  # an interruption from here on doesn't undo the batch
        if self.evaluators or self.dispatcher.pending:
            state = self.evaluate_where_due(before, state, BATCH_END)
        return self.checkpoint(BATCH_CHECKPOINT, state)

    def train_batch(self, state: State) -> State:
        """One step on `state.batch`, from `BATCH_START` to `AFTER_ZERO_GRAD`."""
        fire = self.fire
        state = outer = fire(BATCH_START, state)
        watch, batch = self.watch, state.timestamp.batch
        if watch.avoided and batch in watch.avoided:
            watch.skip(math.nan, batch)
            return outer.evolve(frozen=frozenset())
        buffers = Buffers.of(state.model) if watch.policy == "skip" else None
        state = fire(BEFORE_TRAIN_BATCH, state)
        frozen = freeze(state) if state.frozen else []
        try:
            state = self.learn(outer, state, buffers)
        finally:
            thaw(frozen)
        return state.evolve(frozen=frozenset()) if state.frozen else state

    def learn(self, outer: State, state: State, buffers: Buffers | None) -> State:
        """The gradients of the batch, and what the optimizers make of them."""
        fire, watch, batch = self.fire, self.watch, state.timestamp.batch
        state = self.accumulate_in_memory(state) if self.finds_size else self.passes(state)
        state = fire(AFTER_TRAIN_BATCH, state)
        if state.batch is not outer.batch or state.loss_fn is not outer.loss_fn:
            # The batch that was trained on is gone, and with it all that was done to it.
            state = state.evolve(batch=outer.batch, loss_fn=outer.loss_fn)
        if not watch.passes(state.loss, batch):  # type: ignore[arg-type]
            return self.skip(outer, state, buffers)
        state = fire(BEFORE_OPTIMIZER_STEP, state)
        if state.gradients is not None:
            write_gradients(state)
        if state.lr_override is None:
            return self.step(state)
        with self.rates.replaced(state.lr_override):
            if self.dispatcher.logger.destinations:
                self.rates_used = self.rates.read()
            return self.step(state.evolve(lr_override=None))

    def step(self, state: State) -> State:
        """Let the optimizers step, and drop the gradients."""
        fire = self.fire
        for optimizer in state.optimizers:
            optimizer.step()
        state = fire(AFTER_OPTIMIZER_STEP, state)
        state = fire(BEFORE_ZERO_GRAD, state)
        zero_grad(state)
        if state.gradients is not None:
            state = state.evolve(gradients=None)
        return fire(AFTER_ZERO_GRAD, state)

    def skip(self, outer: State, state: State, buffers: Buffers | None) -> State:
        """Leave a batch out: nothing is as if it had been trained on, but for the loss."""
        zero_grad(state)
        if buffers is not None:
            buffers.put_back()
        self.dispatcher.logger.log_metrics({"nonfinite/skipped": self.watch.skipped})
        return outer.evolve(loss=state.loss)

    def accumulate_in_memory(self, state: State) -> State:
        """The gradients of the batch, over microbatches that fit into memory."""
        count, buffers = (
            count_examples(state.batch_spec.inputs(state.batch)),
            Buffers.of(state.model),
        )
        while True:
            self.size = self.size or count
            try:
                return self.passes(state)
            except torch.OutOfMemoryError as error:
                self.size = halved(min(self.size, count), error)
            zero_grad(state)  # here, since the error holds on to the memory of the pass
            buffers.put_back()
            torch.cuda.empty_cache()

    def passes(self, state: State) -> State:
        """The gradients of the batch: at its weights, or where an algorithm asks for it, at others.

        All else is that of the first pass: what is logged, remembered, and known of activations.
        """
        if state.second_pass is None:
            return self.accumulate(state)
        model = state.model
        before = Buffers.of(model)
        first = self.accumulate(state)
        after = Buffers.of(model)
        weights = state.second_pass(first)
        zero_grad(first)
        before.put_back()  # a layer that counts its calls does in both what it does in one
        with at_weights(model, weights):
            del weights  # the memory for one copy of the parameters
            second = self.accumulate(state)
        after.put_back()
        # Where it isn't finite, neither are the gradients, and the loss is what is watched.
        loss = torch.where(second.loss.isfinite(), first.loss, second.loss)  # type: ignore[union-attr, arg-type]
        return first.evolve(loss=loss, gradients=second.gradients, second_pass=None)

    def accumulate(self, state: State) -> State:
        """The gradients of the batch, in one go or summed over microbatches."""
        if not (self.parts or self.size):
            return self.microbatch(state, 0, None)
        count = count_examples(state.batch_spec.inputs(state.batch))
        sizes = microbatch_sizes(count, parts=self.parts, size=self.size)
        if len(sizes) == 1:
            return self.microbatch(state, 0, None)
        whole, total = state, self.weigh(state.batch)
        loss: Any = 0.0
        for i, batch in enumerate(split_batch(state.batch, sizes)):
            state = self.microbatch(state.evolve(batch=batch), i, self.weigh(batch) / total)
            loss = loss + state.loss
        return state.evolve(batch=whole.batch, loss=loss)

    def microbatch(self, state: State, index: int, share: Any) -> State:
        """Forward, loss and backward of a microbatch that has a `share` of the batch's loss."""
        fire, start = self.fire, state
        state = fire(BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, index)
        state = fire(AFTER_FORWARD, state.evolve(outputs=state.forward()))
        state = fire(BEFORE_LOSS, state)
        loss = state.loss_fn(state.outputs, state.batch)  # type: ignore[misc]
        state = fire(AFTER_LOSS, state.evolve(loss=check_loss(loss)))
        state = fire(BEFORE_BACKWARD, state)
        scaled: Any = state.loss if share is None else state.loss * share
        scaled.backward()
        if share is not None and isinstance(share, Tensor):
            scaled = torch.where(share > 0, scaled, 0.0)  # a mean over no tokens is NaN
        state = state.evolve(loss=scaled.detach(), batch=start.batch, loss_fn=start.loss_fn)
        return fire(AFTER_BACKWARD, state)

    def end_epoch(self, state: State) -> State:
        """Count the epoch, and do what is due after it."""
        if state.timestamp.batch_in_epoch == 0:
            raise ValueError(
                f"train_dataloader gave no batch in epoch {state.timestamp.epoch}: check the "
                "dataset, and that the loader can be gone through more than once."
            )
        before = state = between_batches(state)
        state = state.evolve(timestamp=state.timestamp.next_epoch())
        if self.dispatcher.logger.destinations:  # an epoch of unknown length is over only now
            state = self.log(before, state)
        if self.rates.every_epoch:
            state = self.fire(BEFORE_SCHEDULER_STEP, state)
            self.rates.step_epoch()
            state = self.fire(AFTER_SCHEDULER_STEP, state)
        # An interruption from here on doesn't undo the end of the epoch.
        self.state, self.generators = state, None
        self.state = state = self.fire(Event.EPOCH_END, state)
        state = self.evaluate_where_due(before, state, Event.EPOCH_END)
        if self.rates.plateaus and self.is_evaluated(self.evaluators[0], state):
            state = self.fire(BEFORE_SCHEDULER_STEP, state)
            self.rates.step_plateaus(state.metrics[self.evaluators[0].label]["loss"])
            state = self.fire(AFTER_SCHEDULER_STEP, state)
        return self.checkpoint(Event.EPOCH_CHECKPOINT, state)

    def end_iteration(self, state: State) -> State:
        """Count the iteration."""
        state = state.evolve(timestamp=state.timestamp.next_iteration())
        state = self.fire(Event.ITERATION_END, state)
        return self.checkpoint(Event.ITERATION_CHECKPOINT, state)

    def checkpoint(self, event: Event, state: State) -> State:
        """Save, where somebody asks for it."""
        state = self.fire(event, state)
        if not (self.dispatcher.pending and self.dispatcher.pop(Control.SAVE)):
            return state
        if self.saver is None:
            _warn_unmet("Control.SAVE", "a save_folder, or saver=, a function of the state")
            return state
        return self.save(state)

    def save(self, state: State) -> State:
        """Save."""
        self.watch.look()  # what is saved is good to go on from
        state = self.fire(Event.BEFORE_SAVE, state)
        self.saved_at = self.done(state)
        self.saver(state)  # type: ignore[misc]
        return self.fire(Event.AFTER_SAVE, state)

    def save_at_the_end(self, state: State) -> State:
        """Save the end of training, unless it was saved just now."""
        due = self.saves_at_the_end and self.saved_at != self.done(state)
        return self.save(state) if due else state

    def leave(self, state: State) -> None:
        """End the run after a signal: what was done is saved."""
        if self.saver is not None and self.saved_at != self.done(state):
            self.state = self.save(state)
        raise interruption(self.signal)  # type: ignore[arg-type]

    def done(self, state: State) -> Any:
        """What tells whether anything was done since a save."""
        return [state.timestamp.epoch, state.timestamp.batch, self.evaluated_at.copy()]

    def log(self, before: State, state: State) -> State:
        """Hand the loop's own metrics to the loggers, where it is time or somebody asks."""
        asked = self.dispatcher.pop(Control.LOG)
        if not (asked or crossed(before, state, self.log_interval)):
            return state
        metrics = {"loss/train": state.loss, **self.rates_used}
        self.dispatcher.logger.log_metrics(metrics, state.timestamp)
        return self.fire(Event.LOG, state)

    # --- evaluation ---

    def evaluate_where_due(self, before: State, state: State, event: Event) -> State:
        """Run the evaluators that are due, or all of them where somebody asks."""
        asked = self.dispatcher.pop(Control.EVALUATE)
        if asked and not self.evaluators:
            _warn_unmet("Control.EVALUATE", "an eval_dataloader")
        length = self.iteration_length
        due = [e for e in self.evaluators if asked or e.is_due(before, state, event, length)]
        return self.evaluate(state, due) if due else state

    def evaluate_at_the_end(self, state: State) -> State:
        """Run the evaluators that have not been run after the last batch."""
        wanted = [e for e in self.evaluators if e.eval_interval is not None]
        due = [e for e in wanted if not self.is_evaluated(e, state)]
        return self.evaluate(state, due) if due else state

    def is_evaluated(self, evaluator: Evaluator, state: State) -> bool:
        """Whether an evaluator was run after the last batch."""
        return self.evaluated_at.get(evaluator.label) == state.timestamp.batch

    def evaluate(self, state: State, evaluators: Iterable[Evaluator]) -> State:
        """Run evaluators; training goes on with its own model and batch."""
        outer = state
        state = self.fire(Event.EVAL_BEFORE_ALL, state)
        for evaluator in evaluators:
            state = evaluate(self.dispatcher, state, evaluator, self.weigh)
            self.evaluated_at[evaluator.label] = state.timestamp.batch
        state = self.fire(Event.EVAL_AFTER_ALL, state)
        return outer.evolve(memory=state.memory, metrics=state.metrics)

    # --- what it stands on ---

    def batches(self, state: State) -> Iterator[Any]:
        """The batches of the epoch that have not been trained on."""
        now = state.timestamp
        first = now.batch - now.batch_in_epoch
        saved, self.loader_state = self.loader_state, None
        self.generators = self.generators_of_the_epoch()
        return seeded_batches(
            self.loader or (),
            state.key,
            epoch=now.epoch,
            first_step=first,
            skip=now.batch_in_epoch,  # where an earlier fit stopped in this epoch
            loader_state=saved,
            generators=self.generators,
        )

    def generators_of_the_epoch(self) -> list[Tensor]:
        """What the loader's own generators were when the epoch began, or are between two."""
        return get_generator_states(self.loader) if self.generators is None else self.generators

    def finished(self, state: State) -> bool:
        """Whether training is over."""
        if self.dispatcher.pending and Control.STOP in self.dispatcher.requests:
            return True
        whole = state.max_duration
        if whole is None:
            return False
        if whole.unit is TimeUnit.EPOCH:  # one is over when the loader is, whatever its length
            return state.timestamp.epoch >= whole.value
        return reached(state, whole)


def zero_grad(state: State) -> None:
    """Drop the gradients."""
    for optimizer in state.optimizers:
        if getattr(optimizer.zero_grad, "__func__", None) is not _TORCHS_ZERO_GRAD:
            optimizer.zero_grad()
            continue
        # What torch's does, without its profiling, which would be a third of the loop's cost.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _warn_unmet(asked: str, missing: str) -> None:
    warnings.warn(
        f"a callback asked for {asked}, which this Trainer can't do: give it {missing}.",
        UnsupportedRequestWarning,
        stacklevel=4,
    )
