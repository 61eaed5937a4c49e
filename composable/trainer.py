"""The training loop."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from composable import _arguments as check
from composable.core.batch import (
    BatchSpec,
    count_examples,
    microbatch_sizes,
    split_batch,
    to_device,
)
from composable.core.control import Control
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.loss import ModelLoss, check_loss, weigher
from composable.core.plan import Plan, as_list
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, crossed, reached
from composable.data.order import seeded_batches
from composable.evaluation import bind_loss, evaluate, predict
from composable.loggers.progress_bar import ProgressBarLogger
from composable.metrics import Evaluator
from composable.optim.building import build_optimizers, repoint_optimizers
from composable.optim.learning_rates import LearningRates
from composable.utils.reproducibility import (
    configure_deterministic_mode,
    get_random_seed,
    preserve_rng,
    seed_step,
)

__all__ = ["Trainer", "UnmetRequestWarning"]

_EXHAUSTED = object()


class UnmetRequestWarning(UserWarning):
    """A callback asked for something that this Trainer can't do."""


class Trainer:
    """Trains a model: it fires events, calls the model and obeys requests, and nothing else.

    With no algorithms, the weights after N steps are those of a plain PyTorch loop, to the bit.

    Args:
        model: A module. With `loss_fn` it is called with the input part of each batch; without,
            it has `loss(outputs, batch)` and is called with the whole batch.
        train_dataloader: An iterable of batches.
        eval_dataloader: An iterable of batches, an `Evaluator`, or several evaluators.
        loss_fn: `loss_fn(outputs, targets)`, a mean over the examples.
        optimizers: One or several `torch.optim.Optimizer`, or functions of the parameters that
            return one (`functools.partial(torch.optim.SGD, lr=0.1)`), called after surgery.
        schedulers: One or several of `composable.optim`'s schedules, which set the learning rate
            of every batch, or torch schedulers, which step after every epoch.
        step_schedulers_every_batch: Step torch schedulers after every batch instead.
        max_duration: The length of training: "10ep", "1000ba", or an integer of epochs.
        algorithms: A set of algorithms, or functions `(event, state) -> state`, in any order.
        callbacks: Callbacks, or functions `(event, state, logger) -> Control | None`.
        loggers: Where metrics go.
        metrics: What evaluations measure besides the loss, by name: see `composable.metrics`.
        eval_interval: When evaluation is due: "1ep", "100ba", a function `(state, event) -> bool`,
            or None for never. Training ends with one, unless it is never due.
        log_interval: How often the loop hands loss and learning rate to the loggers.
        progress_bar: Show a progress bar.
        device: "cpu", "cuda" or "cuda:1"; by default "cuda" where there is one. The model is moved.
        seed: What all randomness is derived from; drawn by the operating system where None.
        deterministic_mode: Use deterministic algorithms only: see `configure_deterministic_mode`.
        grad_accum: In how many microbatches each batch is trained on.
        microbatch_size: How many examples a microbatch has; an alternative to `grad_accum`.
        loss_mean_over: What the loss is a mean over, so that microbatches add up to the batch:
            "examples", "tokens" (targets other than -100), or a function of the batch that counts.
        count_tokens: A function of the batch that counts its tokens for `timestamp.token`.
        input_key: Which part of a batch is the input: an index, a name, a path, a function, or a
            pair of functions (get, set).
        target_key: Which part is the target.
        iteration_length: How many epochs an iteration has; the whole run where None.
        saver: A function of the state that saves it when a callback asks for `Control.SAVE`.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.algorithms import LabelSmoothing
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3), train_dataloader=data, max_duration="2ep", seed=17,
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=partial(torch.optim.SGD, lr=0.1),
        ...     algorithms=[LabelSmoothing(0.1)], progress_bar=False)
        >>> trainer.fit().timestamp.batch
        10
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        train_dataloader: Iterable[Any] | None = None,
        eval_dataloader: Any = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        optimizers: Any = None,
        schedulers: Any = None,
        step_schedulers_every_batch: bool = False,
        max_duration: TimeLike | None = None,
        algorithms: Any = (),
        callbacks: Any = (),
        loggers: Any = (),
        metrics: Mapping[str, Any] | None = None,
        eval_interval: Any = "1ep",
        log_interval: TimeLike = "1ba",
        progress_bar: bool = True,
        device: str | torch.device | None = None,
        seed: int | None = None,
        deterministic_mode: bool = False,
        grad_accum: int | None = None,
        microbatch_size: int | None = None,
        loss_mean_over: Any = "examples",
        count_tokens: Callable[[Any], int] | None = None,
        input_key: Any = 0,
        target_key: Any = 1,
        iteration_length: TimeLike | None = None,
        saver: Callable[[State], Any] | None = None,
    ) -> None:
        if deterministic_mode:
            configure_deterministic_mode()
        spec = BatchSpec(input_key, target_key)
        model = check.check_model(model)
        loss = check.check_loss_fn(loss_fn, model, spec)
        if train_dataloader is not None:
            check.check_loader("train_dataloader", train_dataloader)
        self._loader = train_dataloader
        self._evaluators = check.check_evaluators(eval_dataloader, metrics, eval_interval)
        self._metrics = check.check_metrics(metrics)
        self._parts = check.check_positive("grad_accum", grad_accum)
        self._size = check.check_positive("microbatch_size", microbatch_size)
        if self._parts and self._size:
            raise ValueError(
                f"grad_accum={grad_accum} and microbatch_size={microbatch_size} were both given: "
                "give the number of microbatches or their size."
            )
        self._weigh = weigher(loss_mean_over, spec)
        self._count_tokens = check.check_function("count_tokens", count_tokens, "of the batch")
        self._log_interval = check.check_log_interval(log_interval)
        self._iteration_length = check.check_iteration_length(iteration_length)
        self._saver = check.check_function("saver", saver, "of the state")
        self._evaluated_at: dict[str, int] = {}  # by evaluator: the batch after which it was

        bar = [ProgressBarLogger()] if progress_bar else []
        self.plan = Plan.compile(algorithms, callbacks, [*as_list(loggers), *bar])
        self.logger = Logger(self.plan.destinations)
        self._dispatcher = self.plan.dispatcher(self.logger)
        self._fire = self._dispatcher.fire

        where = check.check_device(device)
        state = State(
            model=model.to(where),
            loss_fn=loss,
            max_duration=check.check_max_duration(max_duration),
            epoch_length=None if train_dataloader is None else check.length_of(train_dataloader),
            key=Key(get_random_seed() if seed is None else seed),
            device=where,
            spec=spec,
            takes_batch=isinstance(loss, ModelLoss),
        )
        given = [] if optimizers is None else as_list(optimizers)
        instances = tuple(one for one in given if isinstance(one, torch.optim.Optimizer))
        state = self._surgery(Event.INIT, state.evolve(optimizers=instances))
        state = state.evolve(optimizers=build_optimizers(given, state.model))
        self._rates = LearningRates.build(
            schedulers, state.optimizers, every_batch=step_schedulers_every_batch
        )
        state = state.evolve(schedulers=self._rates.all)
        state = self._surgery(Event.BEFORE_LOAD, state)
        self.state = self._surgery(Event.AFTER_LOAD, state)

    def fit(self, *, duration: TimeLike | None = None) -> State:
        """Train, to `max_duration` or for `duration` more, and return the last state.

        Args:
            duration: How much longer to train: "2ep", "100ba", or an integer of epochs.

        Raises:
            ValueError: Something that training needs was not given, or nothing is left to do.
        """
        state = self._ready_to_fit(duration)
        with preserve_rng(), self._closing():
            self.state = self._fit(state)
        return self.state

    def _fit(self, state: State) -> State:
        self._rates.set(state)
        _zero_grad(state)
        state.model.train()
        state = self._surgery(Event.FIT_START, state)
        self.logger.log_hyperparameters(self._hyperparameters(state))
        while not self._finished(state):
            now = state.timestamp
            if now.epoch_in_iteration == 0 and now.batch_in_epoch == 0:
                state = self._fire(Event.ITERATION_START, state)
            state = self._epoch(state)
            if state.timestamp.epoch_in_iteration == self._iteration_length:
                state = self._end_iteration(state)
        now = state.timestamp
        if self._iteration_length is None and now.epoch_in_iteration and not now.batch_in_epoch:
            state = self._end_iteration(state)
        state = self._evaluate_at_the_end(state)
        return self._fire(Event.FIT_END, state)

    def _epoch(self, state: State) -> State:
        if state.timestamp.batch_in_epoch == 0:
            state = self._surgery(Event.EPOCH_START, state)
        self._rates.set(state)
        batches = self._batches(state)
        while True:
            started = time.perf_counter()
            state = self._fire(Event.BEFORE_DATALOADER, state)
            batch = next(batches, _EXHAUSTED)
            if batch is _EXHAUSTED:
                break
            self.state = state = self._batch(state, batch, started)
            if self._dispatcher.take(Control.END_EPOCH):
                break
            if self._finished(state) and state.timestamp.batch_in_epoch != state.epoch_length:
                return state  # in the middle of an epoch: a later fit goes on from here
        return self._end_epoch(state)

    def _batch(self, state: State, batch: Any, started: float) -> State:
        fire, before = self._fire, state
        state = state.evolve(batch=to_device(batch, state.device))
        samples = count_examples(state.spec.inputs(state.batch))
        tokens = self._count_tokens(state.batch) if self._count_tokens else 0
        state = self.train_batch(fire(Event.AFTER_DATALOADER, state))
        rates = self._rates.read() if self.logger.destinations else None
        now = state.timestamp.next_batch(samples, tokens, time.perf_counter() - started)
        state = state.evolve(timestamp=now)
        if self._rates.steps_each_batch:
            state = fire(Event.BEFORE_SCHEDULER_STEP, state)
            self._rates.step_batch(state)
            state = fire(Event.AFTER_SCHEDULER_STEP, state)
        state = fire(Event.BATCH_END, state)
        if rates is not None:
            state = self._log(before, state, rates)
        if self._evaluators:
            state = self._evaluate_where_due(before, state, Event.BATCH_END)
        return self._checkpoint(Event.BATCH_CHECKPOINT, state)

    def train_batch(self, state: State) -> State:
        """Train on `state.batch`: one step, from `BATCH_START` to `AFTER_ZERO_GRAD`.

        The step depends on the state alone (its weights, its batch, its key and its time), so it
        can be replayed by itself.
        """
        fire = self._fire
        state = outer = fire(Event.BATCH_START, state)
        state = fire(Event.BEFORE_TRAIN_BATCH, state)
        state = self._forward_backward(state)
        state = fire(Event.AFTER_TRAIN_BATCH, state)
        if state.batch is not outer.batch or state.loss_fn is not outer.loss_fn:
            # The batch that was trained on is gone, and with it all that was done to it.
            state = state.evolve(batch=outer.batch, loss_fn=outer.loss_fn)
        state = fire(Event.BEFORE_OPTIMIZER_STEP, state)
        _write_gradients(state)
        for optimizer in state.optimizers:
            optimizer.step()
        state = fire(Event.AFTER_OPTIMIZER_STEP, state)
        state = fire(Event.BEFORE_ZERO_GRAD, state)
        _zero_grad(state)
        if state.gradients is not None:
            state = state.evolve(gradients=None)
        return fire(Event.AFTER_ZERO_GRAD, state)

    def _forward_backward(self, state: State) -> State:
        if self._parts is None and self._size is None:
            return self._microbatch(state, 0, None)
        count = count_examples(state.spec.inputs(state.batch))
        sizes = microbatch_sizes(count, parts=self._parts, size=self._size)
        if len(sizes) == 1:
            return self._microbatch(state, 0, None)
        whole, total = state, self._weigh(state.batch)
        loss: Any = 0.0
        for i, batch in enumerate(split_batch(state.batch, sizes)):
            share = self._weigh(batch) / total
            state = self._microbatch(state.evolve(batch=batch), i, share)
            loss = loss + state.loss
        return state.evolve(batch=whole.batch, loss=loss)

    def _microbatch(self, state: State, index: int, share: float | Tensor | None) -> State:
        fire, start = self._fire, state
        state = fire(Event.BEFORE_FORWARD, state)
        seed_step(state.key, state.timestamp.batch, index)
        state = fire(Event.AFTER_FORWARD, state.evolve(outputs=state.forward()))
        state = fire(Event.BEFORE_LOSS, state)
        loss = state.loss_fn(state.outputs, state.batch)  # type: ignore[misc]
        check_loss(loss)
        state = fire(Event.AFTER_LOSS, state.evolve(loss=loss))
        state = fire(Event.BEFORE_BACKWARD, state)
        loss = state.loss if share is None else state.loss * share  # type: ignore[operator]
        loss.backward()
        if share is not None and isinstance(share, Tensor):  # a mean over no tokens is NaN, and has no share
            loss = torch.where(share > 0, loss, 0.0)
        state = state.evolve(loss=loss.detach(), batch=start.batch, loss_fn=start.loss_fn)
        return fire(Event.AFTER_BACKWARD, state)

    def _end_epoch(self, state: State) -> State:
        if state.timestamp.batch_in_epoch == 0:
            raise ValueError(
                f"train_dataloader gave no batch in epoch {state.timestamp.epoch}: check the "
                "dataset, and that the loader can be gone through more than once."
            )
        before = state
        state = state.evolve(timestamp=state.timestamp.next_epoch())
        if self.logger.destinations:  # an epoch of unknown length is over only now
            state = self._log(before, state, self._rates.read())
        if self._rates.every_epoch:
            state = self._fire(Event.BEFORE_SCHEDULER_STEP, state)
            self._rates.step_epoch()
            state = self._fire(Event.AFTER_SCHEDULER_STEP, state)
        state = self._fire(Event.EPOCH_END, state)
        if self._evaluators:
            state = self._evaluate_where_due(before, state, Event.EPOCH_END)
        if self._rates.plateaus and self._is_evaluated(self._evaluators[0], state):
            state = self._fire(Event.BEFORE_SCHEDULER_STEP, state)
            self._rates.step_plateaus(state.metrics[self._evaluators[0].label]["loss"])
            state = self._fire(Event.AFTER_SCHEDULER_STEP, state)
        return self._checkpoint(Event.EPOCH_CHECKPOINT, state)

    def _end_iteration(self, state: State) -> State:
        state = state.evolve(timestamp=state.timestamp.next_iteration())
        state = self._fire(Event.ITERATION_END, state)
        return self._checkpoint(Event.ITERATION_CHECKPOINT, state)

    def _checkpoint(self, event: Event, state: State) -> State:
        state = self._fire(event, state)
        if not self._dispatcher.take(Control.SAVE):
            return state
        if self._saver is None:
            warnings.warn(
                "a callback asked for Control.SAVE, and the Trainer has nothing to save with: give "
                "it saver=, a function of the state.",
                UnmetRequestWarning,
                stacklevel=2,
            )
            return state
        state = self._fire(Event.BEFORE_SAVE, state)
        self._saver(state)
        return self._fire(Event.AFTER_SAVE, state)

    def _log(self, before: State, state: State, rates: dict[str, float]) -> State:
        if not (self._dispatcher.take(Control.LOG) or crossed(before, state, self._log_interval)):
            return state
        self.logger.log_metrics({"loss/train": state.loss, **rates}, state.timestamp)
        return self._fire(Event.LOG, state)

    # --- evaluation ---

    def _evaluate_where_due(self, before: State, state: State, event: Event) -> State:
        asked = self._dispatcher.take(Control.EVALUATE)
        length = self._iteration_length
        due = [e for e in self._evaluators if asked or _is_due(e, before, state, event, length)]
        return self._evaluate(state, due) if due else state

    def _evaluate_at_the_end(self, state: State) -> State:
        wanted = [e for e in self._evaluators if e.eval_interval is not None]
        due = [e for e in wanted if not self._is_evaluated(e, state)]
        return self._evaluate(state, due) if due else state

    def _is_evaluated(self, evaluator: Evaluator, state: State) -> bool:
        return self._evaluated_at.get(evaluator.label) == state.timestamp.batch

    def _evaluate(self, state: State, evaluators: Iterable[Evaluator]) -> State:
        outer = state
        state = self._fire(Event.EVAL_BEFORE_ALL, state)
        for evaluator in evaluators:
            state = evaluate(self._dispatcher, state, evaluator, self._weigh)
            self._evaluated_at[evaluator.label] = state.timestamp.batch
        state = self._fire(Event.EVAL_AFTER_ALL, state)
        return outer.evolve(memory=state.memory, metrics=state.metrics)

    def eval(self, eval_dataloader: Any = None) -> dict[str, dict[str, float]]:
        """Evaluate now; the results by evaluator and metric.

        Args:
            eval_dataloader: As in the constructor; what was given there where None.

        Raises:
            ValueError: There is nothing to evaluate on.
        """
        given = check.check_evaluators(eval_dataloader, self._metrics, None)
        evaluators = given or self._evaluators
        if not evaluators:
            raise ValueError(
                "eval_dataloader was given neither to eval nor to the Trainer: give it to one."
            )
        with preserve_rng(), self._closing():
            state = self._fire(Event.EVAL_STANDALONE_START, self.state)
            for evaluator in evaluators:
                state = evaluate(self._dispatcher, state, evaluator, self._weigh)
            state = self._fire(Event.EVAL_STANDALONE_END, state)
        self.state = self.state.evolve(memory=state.memory, metrics=state.metrics)
        return {evaluator.label: dict(state.metrics[evaluator.label]) for evaluator in evaluators}

    def predict(self, dataloader: Iterable[Any]) -> list[Any]:
        """Call the model on every batch of a loader; its outputs, a batch each, on the CPU."""
        loader = check.check_loader("dataloader", dataloader)
        with preserve_rng(), self._closing():
            self.state, outputs = predict(self._dispatcher, self.state, loader)
        return outputs

    # --- what the loop stands on ---

    def _surgery(self, event: Event, state: State) -> State:
        """Fire an event at which models are replaced; the optimizers follow."""
        before = state.model
        state = self._fire(event, state)
        if state.model is before:
            return state
        repoint_optimizers(state.optimizers, before, state.model)
        return bind_loss(state)

    def _batches(self, state: State) -> Iterator[Any]:
        now = state.timestamp
        batches = seeded_batches(
            self._loader or (),
            state.key,
            epoch=now.epoch,
            first_step=now.batch - now.batch_in_epoch,
        )
        for _ in range(now.batch_in_epoch):  # where an earlier fit stopped in this epoch
            next(batches, None)
        return batches

    def _finished(self, state: State) -> bool:
        if self._dispatcher.requests and Control.STOP in self._dispatcher.requests:
            return True
        whole = state.max_duration
        if whole is None:
            return False
        if whole.unit is TimeUnit.EPOCH:  # an epoch is done when the loader is, whatever its length
            return state.timestamp.epoch >= whole.value
        return reached(state, whole)

    def _ready_to_fit(self, duration: TimeLike | None) -> State:
        state = self.state
        missing = {
            "train_dataloader": self._loader is None,
            "optimizers": not state.optimizers,
            "max_duration": state.max_duration is None and duration is None,
        }
        for argument, absent in missing.items():
            if absent:
                raise ValueError(f"{argument} was not given to the Trainer, and fit needs it.")
        if state.loss_fn is None:
            raise ValueError(
                f"loss_fn was not given to the Trainer, and {type(state.model).__name__} has no "
                "loss(outputs, batch): give one of them."
            )
        if self._rates.plateaus and not self._evaluators:
            raise ValueError(
                "schedulers has a ReduceLROnPlateau, which follows the loss of an evaluation: give "
                "the Trainer an eval_dataloader."
            )
        self._dispatcher.requests = Control.NONE
        if duration is not None:
            longer = check.check_max_duration(duration, "duration")
            state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
        check.check_iterations(state.max_duration, self._iteration_length)
        if self._finished(state):
            raise ValueError(
                f"max_duration={str(state.max_duration)!r} is reached, at {state!r}: call "
                "fit(duration=...) to train for longer."
            )
        return state

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Close every callback once, whatever happens, and keep the first error."""
        first: BaseException | None = None
        try:
            yield
        except BaseException as error:
            first = error
        for callback in self.plan.callbacks:
            try:
                callback.close()
            except Exception as error:
                if first is not None:
                    warnings.warn(f"{callback.name} could not be closed: {error}", stacklevel=2)
                first = first or error
        if first is not None:
            raise first

    def _hyperparameters(self, state: State) -> dict[str, Any]:
        return {
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "algorithms": {a.name: repr(a) for a in self.plan.algorithms},
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [repr(s) for s in self._rates.schedules],
            "device": str(state.device),
            "torch": torch.__version__,
            "num_threads": torch.get_num_threads(),
        }


def _is_due(
    evaluator: Evaluator, before: State, state: State, event: Event, iteration_length: int | None
) -> bool:
    interval = evaluator.eval_interval
    if interval is None:
        return False
    if not isinstance(interval, Time):
        return bool(interval(state, event))
    if interval.unit not in (TimeUnit.EPOCH, TimeUnit.ITERATION):
        return crossed(before, state, interval)  # the end of an epoch alone may cross it too
    if event is not Event.EPOCH_END:
        return False
    now = state.timestamp
    if interval.unit is TimeUnit.ITERATION:  # with the last epoch of the iteration
        ends = now.epoch_in_iteration == iteration_length
        return ends and (now.iteration + 1) % int(interval.value) == 0
    return now.epoch % int(interval.value) == 0


def _zero_grad(state: State) -> None:
    for optimizer in state.optimizers:
        if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
            optimizer.zero_grad()  # somebody's own
            continue
        for group in optimizer.param_groups:  # what torch's does, without its profiling: half
            for parameter in group["params"]:  # of what the loop would otherwise cost
                parameter.grad = None


def _write_gradients(state: State) -> None:
    if state.gradients is None:
        return
    for name, parameter in state.model.named_parameters():
        if name in state.gradients:
            parameter.grad = state.gradients[name]
