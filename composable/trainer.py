"""The training loop."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from composable import _arguments as check
from composable._parts import surgery
from composable.core.batch import BatchSpec
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.loss import ModelLoss, weigher
from composable.core.plan import Plan, as_list
from composable.core.state import State
from composable.core.time import TimeLike
from composable.evaluation import evaluate, predict
from composable.loggers.progress_bar import ProgressBarLogger
from composable.loop import Loop, zero_grad
from composable.optim.building import build_optimizers
from composable.optim.learning_rates import LearningRates
from composable.utils.reproducibility import (
    configure_deterministic_mode,
    get_random_seed,
    preserve_rng,
)

__all__ = ["Trainer"]


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
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=data,
        ...     max_duration="2ep",
        ...     seed=17,
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=partial(torch.optim.SGD, lr=0.1),
        ...     algorithms=[LabelSmoothing(0.1)],
        ...     progress_bar=False,
        ... )
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
        self._metrics = check.check_metrics(metrics)
        evaluators = check.check_evaluators(eval_dataloader, metrics, eval_interval)
        parts = check.check_positive("grad_accum", grad_accum)
        size = check.check_positive("microbatch_size", microbatch_size)
        check.check_split(parts, size)

        bar = [ProgressBarLogger()] if progress_bar else []
        self.plan = Plan.compile(algorithms, callbacks, [*as_list(loggers), *bar])
        self.logger = Logger(self.plan.destinations)
        dispatcher = self.plan.dispatcher(self.logger)

        where = check.check_device(device)
        state = State(
            model=model.to(where),
            loss_fn=loss,
            max_duration=None if max_duration is None else check.check_duration(max_duration),
            epoch_length=check.length_of(train_dataloader),
            key=Key(get_random_seed() if seed is None else seed),
            device=where,
            spec=spec,
            takes_batch=isinstance(loss, ModelLoss),
        )
        given = as_list(optimizers)
        instances = tuple(one for one in given if isinstance(one, torch.optim.Optimizer))
        state = surgery(dispatcher.fire, Event.INIT, state.evolve(optimizers=instances))
        state = state.evolve(optimizers=build_optimizers(given, state.model))
        rates = LearningRates.build(
            schedulers, state.optimizers, every_batch=step_schedulers_every_batch
        )
        state = state.evolve(schedulers=rates.all)
        state = surgery(dispatcher.fire, Event.BEFORE_LOAD, state)
        state = surgery(dispatcher.fire, Event.AFTER_LOAD, state)
        self._loop = Loop(
            dispatcher=dispatcher,
            state=state,
            rates=rates,
            weigh=weigher(loss_mean_over, spec),
            loader=train_dataloader,
            evaluators=evaluators,
            parts=parts,
            size=size,
            log_interval=check.check_log_interval(log_interval),
            iteration_length=check.check_iteration_length(iteration_length),
            count_tokens=check.check_function("count_tokens", count_tokens, "of the batch"),
            saver=check.check_function("saver", saver, "of the state"),
        )

    @property
    def state(self) -> State:
        """Where the run stands: the state after the last finished batch."""
        return self._loop.state

    def fit(self, *, duration: TimeLike | None = None) -> State:
        """Train, to `max_duration` or for `duration` more, and return the last state.

        Args:
            duration: How much longer to train: "2ep", "100ba", or an integer of epochs. An epoch
                that was begun counts as the first of them.

        Raises:
            ValueError: Something that training needs was not given, or nothing is left to do.
        """
        loop, state = self._loop, self._ready_to_fit(duration)
        with preserve_rng(), self._closing():
            zero_grad(state)
            state.model.train()
            loop.rates.set(state)
            state = surgery(loop.fire, Event.FIT_START, state)
            self.logger.log_hyperparameters(self._hyperparameters(state))
            loop.state = loop.fit(state)
        return loop.state

    def train_batch(self, state: State) -> State:
        """Train on `state.batch`: one step, from `BATCH_START` to `AFTER_ZERO_GRAD`.

        The step depends on the state alone (its weights, its batch, its key and its time), so it
        can be replayed by itself.
        """
        return self._loop.train_batch(state)

    def eval(self, eval_dataloader: Any = None) -> dict[str, dict[str, float]]:
        """Evaluate now; the results by evaluator and metric.

        Args:
            eval_dataloader: As in the constructor; what was given there where None.

        Raises:
            ValueError: There is nothing to evaluate on.
        """
        loop = self._loop
        given = check.check_evaluators(eval_dataloader, self._metrics, None)
        evaluators = given or loop.evaluators
        if not evaluators:
            raise ValueError(
                "eval_dataloader was given neither to eval nor to the Trainer: give it to one."
            )
        with preserve_rng(), self._closing():
            state = loop.fire(Event.EVAL_STANDALONE_START, self.state)
            for evaluator in evaluators:
                state = evaluate(loop.dispatcher, state, evaluator, loop.weigh)
            state = loop.fire(Event.EVAL_STANDALONE_END, state)
        loop.state = self.state.evolve(memory=state.memory, metrics=state.metrics)
        return {one.label: dict(state.metrics[one.label]) for one in evaluators}

    def predict(self, dataloader: Iterable[Any]) -> list[Any]:
        """Call the model on every batch of a loader; its outputs, a batch each, on the CPU."""
        loader = check.check_loader("dataloader", dataloader)
        with preserve_rng(), self._closing():
            self._loop.state, outputs = predict(self._loop.dispatcher, self.state, loader)
        return outputs

    def _ready_to_fit(self, duration: TimeLike | None) -> State:
        loop, state = self._loop, self.state
        missing = {
            "train_dataloader": loop.loader is None,
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
        if loop.rates.plateaus and not loop.evaluators:
            raise ValueError(
                "schedulers has a ReduceLROnPlateau, which follows the loss of an evaluation: give "
                "the Trainer an eval_dataloader."
            )
        loop.dispatcher.forget()
        if duration is not None:
            longer = check.check_duration(duration, "duration")
            state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
        check.check_iterations(state.max_duration, loop.iteration_length)
        if loop.finished(state):
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
            "schedulers": [repr(s) for s in self._loop.rates.schedules],
            "device": str(state.device),
            "torch": torch.__version__,
            "num_threads": torch.get_num_threads(),
        }
