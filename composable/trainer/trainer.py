"""The training loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from composable.callbacks.checkpoint_saver import CheckpointSaver, Saved, check_patterns
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.files import write
from composable.checkpoint.folders import make_folder
from composable.checkpoint.weights import load_weights
from composable.core._notes import add_note
from composable.core.batch import BatchSpec
from composable.core.callback import Callback, closing
from composable.core.control import Control
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.intervals import IntervalLike
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.loss import ModelLoss, weigher
from composable.core.state import State
from composable.core.time import TimeLike
from composable.loggers.progress_bar import ProgressBarLogger
from composable.optim.building import build_optimizers
from composable.optim.learning_rates import LearningRates
from composable.plan.declarations import as_callback, as_list
from composable.plan.dispatch import Dispatcher
from composable.plan.global_callbacks import global_callbacks
from composable.plan.plan import Plan
from composable.plan.timeline import Timeline
from composable.replay import join, quiet
from composable.runs.environment import describe_environment
from composable.runs.recorder import RunRecorder
from composable.trainer import options as check
from composable.trainer.evaluation import evaluate, predict
from composable.trainer.guards import NonFiniteLossError, heed_signals
from composable.trainer.loop import Loop, zero_grad
from composable.trainer.parameters import surgery
from composable.trainer.resume import (
    Source,
    find_source,
    new_run,
    newest_weights,
    newest_whole,
    refuse_others,
)
from composable.trainer.run_state import by_name, put_back, take, take_weights
from composable.utils.replay_mode import current
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
        microbatch_size: How many examples a microbatch has; an alternative to `grad_accum`. "auto"
            begins with whole batches, and halves where the GPU's memory doesn't suffice.
        loss_mean_over: What the loss is a mean over, so that microbatches add up to the batch:
            "examples", "tokens" (targets other than -100), or a function of the batch that counts.
        count_tokens: A function of the batch that counts its tokens for `timestamp.token`.
        input_key: Which part of a batch is the input: an index, a name, a path, a function, or a
            pair of functions (get, set).
        target_key: Which part is the target.
        iteration_length: How many epochs an iteration has; the whole run where None.
        saver: A function of the state that saves it in a way of its own, when a callback asks for
            `Control.SAVE`; an alternative to `save_folder`.
        save_folder: Where checkpoints go: see `composable.callbacks.CheckpointSaver`, which has
            what follows.
        save_interval: When to save: "1ep", "100ba", a function `(state, event) -> bool`, or None
            for whenever a callback asks. The end of training is saved too.
        save_filename: The name of a checkpoint.
        save_num_checkpoints_to_keep: How many of the newest are kept; all where None.
        save_overwrite: Replace checkpoints of another run.
        save_weights_only: Save the model alone.
        save_ignore_keys: What to leave out, as patterns of paths.
        save_in_background: Write while training goes on.
        save_error: What to do where a checkpoint can't be written: "raise", or "warn" and go on.
        save_best: The result of evaluation that tells the best checkpoint: "eval/accuracy".
        save_best_mode: Whether the "max" or the "min" of it is best.
        load_path: A checkpoint to go on from, or a folder of several, whose newest is taken.
        load_weights_only: Take the weights alone, and begin another run.
        load_ignore_keys: What not to load, as patterns of paths: "optimizers", "memory/EMA".
        autoresume: Go on from the newest whole checkpoint in `save_folder`, if there is one.
        nonfinite_loss: What to do about a loss that is NaN or infinite: "raise"; "skip" the batch;
            "rollback" to the last checkpoint and go on from there without that batch; or "ignore".
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
        microbatch_size: int | str | None = None,
        loss_mean_over: Any = "examples",
        count_tokens: Callable[[Any], int] | None = None,
        input_key: Any = 0,
        target_key: Any = 1,
        iteration_length: TimeLike | None = None,
        saver: Callable[[State], Any] | None = None,
        save_folder: str | Path | None = None,
        save_interval: IntervalLike = "1ep",
        save_filename: str = "ep{epoch}-ba{batch}",
        save_num_checkpoints_to_keep: int | None = None,
        save_overwrite: bool = False,
        save_weights_only: bool = False,
        save_ignore_keys: Sequence[str] = (),
        save_in_background: bool = False,
        save_error: str = "raise",
        save_best: str | None = None,
        save_best_mode: str = "max",
        load_path: str | Path | None = None,
        load_weights_only: bool = False,
        load_ignore_keys: Sequence[str] = (),
        autoresume: bool = False,
        nonfinite_loss: str = "raise",
        check_effects: bool = False,
    ) -> None:
        flags = {
            "step_schedulers_every_batch": step_schedulers_every_batch,
            "progress_bar": progress_bar,
            "deterministic_mode": deterministic_mode,
            "check_effects": check_effects,
            "load_weights_only": load_weights_only,
            "autoresume": autoresume,
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
        finds_size = microbatch_size == "auto"
        size = None if finds_size else check.check_positive("microbatch_size", microbatch_size)
        check.check_split(parts, microbatch_size)

        counter = check.check_token_counter(count_tokens)
        interval = check.check_log_interval(log_interval)
        check.check_countable("log_interval", interval, counter)
        for evaluator in evaluators:
            check.check_countable("eval_interval", evaluator.eval_interval, counter)

        core: list[Callback] = [ProgressBarLogger()] if progress_bar else []
        if save_folder is None:
            check.check_unused(
                save_interval=(save_interval, "1ep"),
                save_num_checkpoints_to_keep=(save_num_checkpoints_to_keep, None),
                save_best=(save_best, None),
                save_in_background=(save_in_background, False),
                save_weights_only=(save_weights_only, False),
            )
        else:
            own_saver = CheckpointSaver(
                save_folder,
                save_interval=save_interval,
                filename=save_filename,
                num_checkpoints_to_keep=save_num_checkpoints_to_keep,
                overwrite=save_overwrite,
                weights_only=save_weights_only,
                ignore_keys=save_ignore_keys,
                background=save_in_background,
                on_error=save_error,
                metric=save_best,
                mode=save_best_mode,
            )
            core.append(own_saver)
            if not any(isinstance(one, RunRecorder) for one in as_list(callbacks)):
                core.append(RunRecorder(save_folder, on_error=save_error))
        check.check_resuming(autoresume, save_folder, save_weights_only, save_ignore_keys)
        ignored = check_patterns("load_ignore_keys", load_ignore_keys)
        self._replay = replay = join(save_folder)
        core, loggers = quiet(core, loggers)
        self._plan = Plan.compile(algorithms, callbacks, loggers, builtin_callbacks=core)
        self._in_call = False
        self.logger = Logger(self._plan.destinations)
        dispatcher = Dispatcher(self._plan, self.logger, check_effects=check_effects)
        self._dispatcher = dispatcher

        where = check.check_device(device)
        folder = None if save_folder is None else Path(save_folder)
        given_path = None if load_weights_only else load_path
        source = None if replay is None else replay.source(where)
        if source is None:
            first = folder if autoresume and replay is None else None
            source = find_source(given_path, folder=first, device=where, ignored=ignored)
        known = replay.seed if replay is not None else None
        seed = check.check_seed(seed, known if source is None else source.seed)
        if folder is not None and not (autoresume or save_overwrite or current()):
            refuse_others(folder, None if source is None else source.run)
        length = None if max_duration is None else check.check_duration(max_duration)
        begun = new_run() if replay is None else replay.run
        self._run = begun if source is None else source.run
        state = State(
            model=model.to(where),
            loss_fn=loss,
            max_duration=length,
            epoch_length=check.length_of(train_dataloader),
            key=Key(get_random_seed() if seed is None else seed),
            device=where,
            batch_spec=spec,
            model_takes_batch=isinstance(loss, ModelLoss),
        )
        iterations = check.check_iteration_length(iteration_length)
        check.check_windows(self._plan, counter, iterations)
        if train_dataloader is not None:
            self._plan.report_idle(state, check.absent_events(evaluators, schedulers))
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
            if source is None and load_path is not None:
                load_weights(state.model, newest_weights(load_path), ignore=ignored)
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
                iteration_length=iterations,
                count_tokens=counter,
                saver=check.check_function("saver", saver, "of the state"),
                given_duration=length,
                finds_size=finds_size,
                watch=check.check_watch(nonfinite_loss, where, save_folder),
                rewind=self._rewind if nonfinite_loss == "rollback" and replay is None else None,
            )
            self._resumed = False
            self._remembered: dict[str, Any] = {}
            self._loaded: Path | None = None
            if source is not None:
                self._go_on(source, ignored)
            if replay is not None:
                replay.take_in(self._loop, self._recorders)
            self._connect()

    @property
    def plan(self) -> Plan:
        """Who would run when, if a run began here and now: global callbacks included."""
        return self._plan.with_global_callbacks(global_callbacks())

    def timeline(self) -> Timeline:
        """When each algorithm is active over the run: see `Plan.timeline`."""
        return self.plan.timeline(self.state.max_duration, self.state.epoch_length)  # type: ignore[arg-type]

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
        if self._replay is not None and self._replay.passes_over_fit():
            return self.state
        loop, state = self._loop, self._ready_to_fit(duration)
        with preserve_rng(), self._running(), heed_signals(self._note_signal):
            loop.signal = None
            zero_grad(state)
            loop.rates.set(state)
            if loop.fitting:  # what was cut off goes on: the algorithms have acted at its start
                loop.dispatcher.run_callbacks(Event.FIT_START, state)
            else:
                state.model.train()
                loop.state = state = surgery(loop.fire, Event.FIT_START, state)
                loop.fits, loop.fitting = loop.fits + 1, True
            description = self._describe(state)
            self.logger.log_hyperparameters(description)
            for recorder in self._recorders:
                recorder.begin(description, state)
            if self._replay is not None:
                self._replay.begin(description)
            loop.state = loop.fit(state)
            loop.fitting = False
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
        self._connect()
        return callback

    # --- checkpoints ---

    def save_checkpoint(
        self, path: str | Path, *, weights_only: bool = False, overwrite: bool = False
    ) -> Path:
        """Save the run as it stands, between two calls of `fit`.

        While `fit` runs, a callback asks for `Control.SAVE` instead.

        Args:
            path: The checkpoint, a folder; the folder above it is made.
            weights_only: Save the model alone.
            overwrite: Replace a checkpoint that is there.

        Raises:
            RuntimeError: It was called from a callback.
            CheckpointError: It could not be written.
        """
        if self._in_call:
            raise RuntimeError(
                "save_checkpoint was called while the Trainer runs, in the middle of something: "
                "return Control.SAVE from the callback instead."
            )
        target = Path(path)
        if current() is not None:
            return target  # a replay writes nothing
        run, tree = self._describe(self.state), self._take(weights_only)
        saved = Saved.of(self.state, run, tree, complete=not weights_only)
        make_folder(target.parent)
        return write(target, saved.tensors, saved.data, overwrite=overwrite, info=saved.info)

    def _save(self, state: State) -> None:
        """Have those who asked for it write checkpoints, or all where somebody else asked."""
        savers = [one for one in self._savers if one.wanted] or self._savers
        for saver in savers:
            if self._replay is not None:
                self._replay.check_saved(saver.name_of(state), lambda: self._take(False, state))
            saver.save(state, self._describe(state), lambda only: self._take(only, state))

    def _take(self, weights_only: bool, state: State | None = None) -> dict[str, Any]:
        now = self.state if state is None else state
        if weights_only:
            return take_weights(now)
        return take(self._loop, now, (*self._plan.builtin_callbacks, *self._plan.user_callbacks))

    @property
    def _savers(self) -> list[CheckpointSaver]:
        return [one for one in self._plan.callbacks if isinstance(one, CheckpointSaver)]

    @property
    def _recorders(self) -> list[RunRecorder]:
        return [one for one in self._plan.callbacks if isinstance(one, RunRecorder)]

    def _note_signal(self, number: int) -> None:
        self._loop.signal = number

    def _rewind(self, error: NonFiniteLossError) -> State:
        """Go back to the last checkpoint of this run."""
        loop = self._loop
        for saver in self._savers:
            saver.finish()
        source = newest_whole(self._savers[0].folder, loop.state.device, run=self._run)
        if source is None:
            add_note(error, "there is no checkpoint to roll back to: save at shorter intervals.")
            raise error
        counted = loop.watch.state_dict()
        put_back(loop, loop.state, source.tree, str(source.path))
        loop.watch.load_state_dict(counted)
        self._remembered, self._loaded = dict(source.tree["callbacks"]), source.path
        self._connect()
        self.logger.log_metrics({"nonfinite/rolled_back": loop.watch.rolled_back})
        return loop.state

    def _connect(self) -> None:
        """Tell the loop who saves, and give callbacks what they remembered."""
        if self._savers:
            self._loop.saver = self._save
            self._loop.saves_at_the_end = any(one.save_interval for one in self._savers)
        named = by_name((*self._plan.builtin_callbacks, *self._plan.user_callbacks))
        for name in named.keys() & self._remembered.keys():
            remembered = self._remembered.pop(name)
            try:
                named[name].load_state_dict(remembered)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise MismatchError(
                    f"{self._loaded} has a state of {name} that it can't take back: "
                    f"{type(error).__name__}: {error} load_ignore_keys=['callbacks/{name}'] leaves "
                    "it as it is."
                ) from error

    def _go_on(self, source: Source, ignored: Sequence[str]) -> None:
        """Put a saved run back into this one, which was built as it was."""
        loop = self._loop
        if source.fits:  # what algorithms replaced at the start of training is replaced again
            loop.state = surgery(loop.dispatcher.run_algorithms, Event.FIT_START, loop.state)
        tree = source.tree if not ignored else source.without(ignored, self._take(False))
        put_back(loop, loop.state, tree, str(source.path))
        self._remembered, self._loaded = dict(tree["callbacks"]), source.path
        self._resumed = True
        if self._replay is None:  # which says so itself
            source.warn_of_changes(self._describe(self.state))

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
        if not self._resumed:
            loop.dispatcher.clear()
        self._resumed = False
        if self._replay is not None and loop.fitting and not loop.finished(state):
            duration = None  # it is as it was saved
        if duration is not None:
            longer = check.check_duration(duration, "duration")
            loop.fitting = loop.fitting and not loop.finished(state)
            state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
        check.check_iterations(state.max_duration, loop.iteration_length)
        check.check_countable("max_duration", state.max_duration, loop.count_tokens)
        if not loop.fitting and loop.finished(state):
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
            self._dispatcher.set_plan(plan)
            self.logger.destinations = plan.destinations

    def _describe(self, state: State) -> dict[str, Any]:
        """What the run is made of and runs on, as plain values."""
        return {
            "id": self._run,
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "given_duration": str(self._loop.given_duration),
            "epoch_length": state.epoch_length,
            "model": type(state.model).__name__,
            "algorithms": {a.name: repr(a) for a in self._plan.algorithms},
            "callbacks": [callback.name for callback in self._plan.callbacks],
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [repr(s) for s in self._loop.rates.schedules],
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(),
        }
