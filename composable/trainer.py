"""The training loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from composable import _arguments as check
from composable._parts import surgery
from composable.core.batch import BatchSpec
from composable.core.callback import Callback, closing
from composable.core.control import Control
from composable.core.event import Event
from composable.core.global_callbacks import global_callbacks
from composable.core.key import Key
from composable.core.logger import Logger, LoggerDestination
from composable.core.loss import ModelLoss, weigher
from composable.core.plan import Plan, as_callback, as_list
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
        check_effects: For tests: look over everything in the state before and after each algorithm
            and callback, and raise where one changed it, or wrote a field that it doesn't declare.

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
        check_effects: bool = False,
    ) -> None:
        flags = {
            "step_schedulers_every_batch": step_schedulers_every_batch,
            "progress_bar": progress_bar,
            "deterministic_mode": deterministic_mode,
            "check_effects": check_effects,
        }
        for name, flag in flags.items():
            check.check_flag(name, flag)
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

        counter = check.check_token_counter(count_tokens)
        interval = check.check_log_interval(log_interval)
        check.check_countable("log_interval", interval, counter)
        for evaluator in evaluators:
            check.check_countable("eval_interval", evaluator.eval_interval, counter)

        bar = [ProgressBarLogger()] if progress_bar else []
        self._plan = Plan.compile(algorithms, callbacks, loggers, core=bar)
        self._in_call = False
        self.logger = Logger(self._plan.destinations)
        dispatcher = self._plan.dispatcher(self.logger, check_effects=check_effects)
        self._dispatcher = dispatcher

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
        with preserve_rng(), self._running(close_at_the_end=False):
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
                log_interval=interval,
                iteration_length=check.check_iteration_length(iteration_length),
                count_tokens=counter,
                saver=check.check_function("saver", saver, "of the state"),
            )

    @property
    def plan(self) -> Plan:
        """Who would run when, if a run began here and now: global callbacks included."""
        return self._plan.visited_by(global_callbacks())

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
        with preserve_rng(), self._running():
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
        with self._looked_up():
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
        with preserve_rng(), self._running():
            state = loop.fire(Event.EVAL_STANDALONE_START, self.state)
            for evaluator in evaluators:
                state = evaluate(loop.dispatcher, state, evaluator, loop.weigh)
            state = loop.fire(Event.EVAL_STANDALONE_END, state)
        loop.state = self.state.evolve(memory=state.memory, metrics=state.metrics)
        return {one.label: dict(state.metrics[one.label]) for one in evaluators}

    def predict(self, dataloader: Iterable[Any]) -> list[Any]:
        """Call the model on every batch of a loader; its outputs, a batch each, on the CPU."""
        loader = check.check_loader("dataloader", dataloader)
        with preserve_rng(), self._running():
            self._loop.state, outputs = predict(self._loop.dispatcher, self.state, loader)
        return outputs

    def add_callback(
        self, callback: Callback | type[Callback] | Callable[..., Control | None]
    ) -> Callback:
        """Add a callback or a logger; it runs after those that are there, from the next call on.

        A run that has begun keeps the callbacks that it began with, and the events of the
        constructor are over.

        Args:
            callback: A callback, a logger, a class of either, which is called without arguments,
                or a function `(event, state, logger) -> Control | None`.

        Returns:
            The callback that was added: where a class was given, its instance.

        Raises:
            TypeError: It is something else, or the class can't be called without arguments.
            ValueError: It was added before.

        Example:
            >>> from composable import Callback, Trainer
            >>> class Count(Callback):
            ...     fits = 0
            ...
            ...     def fit_start(self, state, logger):
            ...         self.fits += 1
            >>> trainer = Trainer(torch.nn.Linear(2, 1), progress_bar=False)
            >>> count = trainer.add_callback(Count)
            >>> count.fits
            0
        """
        if isinstance(callback, type) and issubclass(callback, Callback):
            callback = check.build_callback(callback)
        if not isinstance(callback, LoggerDestination):
            callback = as_callback(callback, "add_callback got")
        self._plan = self._plan.with_callback(callback)
        return callback

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
        due = [evaluator.eval_interval is not None for evaluator in loop.evaluators[:1]]
        if loop.rates.plateaus and not any(due):
            raise ValueError(
                "schedulers has a ReduceLROnPlateau, which follows the loss of an evaluation: give "
                "the Trainer an eval_dataloader, and an eval_interval such as '1ep'."
            )
        loop.dispatcher.forget()
        if duration is not None:
            longer = check.check_duration(duration, "duration")
            state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
        check.check_iterations(state.max_duration, loop.iteration_length)
        check.check_countable("max_duration", state.max_duration, loop.count_tokens)
        if loop.finished(state):
            raise ValueError(
                f"max_duration={str(state.max_duration)!r} is reached, at {state!r}: call "
                "fit(duration=...) to train for longer."
            )
        return state

    @contextmanager
    def _running(self, *, close_at_the_end: bool = True) -> Iterator[None]:
        """Run with the callbacks of now, and close them once, whatever happens."""
        with (
            self._looked_up() as plan,
            closing(plan.callbacks if plan else (), at_the_end=close_at_the_end),
        ):
            yield

    @contextmanager
    def _looked_up(self) -> Iterator[Plan | None]:
        """The plan of a call, global callbacks included, from its beginning to its end.

        A callback may call the Trainer too. That is part of the run that goes on: it has no plan
        of its own, and the callbacks will be closed when that run ends.
        """
        if self._in_call:
            yield None
            return
        self._in_call = True
        plan = self.plan
        self._follow(plan)
        try:
            yield plan
        finally:
            self._follow(self._plan)
            self._in_call = False

    def _follow(self, plan: Plan) -> None:
        if plan is not self._dispatcher.plan:
            self._dispatcher.follow(plan)
            self.logger.destinations = plan.destinations

    def _hyperparameters(self, state: State) -> dict[str, Any]:
        return {
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "algorithms": {a.name: repr(a) for a in self._plan.algorithms},
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [repr(s) for s in self._loop.rates.schedules],
            "device": str(state.device),
            "torch": torch.__version__,
            "num_threads": torch.get_num_threads(),
        }
