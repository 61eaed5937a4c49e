"""The `Trainer`: builds a run, drives the loop, and saves and restores the run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from composable.callbacks.checkpoint_saver import CheckpointSaver, Saved
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.files import write
from composable.checkpoint.folders import make_folder
from composable.core._notes import add_note
from composable.core.callback import Callback, closing
from composable.core.control import Control
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import TimeLike
from composable.plan.declarations import as_callback
from composable.plan.dispatch import Dispatcher
from composable.plan.global_callbacks import global_callbacks
from composable.plan.plan import Plan
from composable.plan.timeline import Timeline
from composable.runs.environment import describe_environment
from composable.runs.recorder import RunRecorder
from composable.trainer import arguments as check
from composable.trainer import loop
from composable.trainer._signature import takes_arguments_of
from composable.trainer.build import build_run, build_state
from composable.trainer.evaluation import evaluate, predict
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.options import TrainerOptions, run_overrides
from composable.trainer.parameters import surgery, zero_grad
from composable.trainer.resume import ResumePoint, latest_valid
from composable.trainer.run_state import capture, capture_weights, named_callbacks, restore
from composable.utils.reproducibility import configure_deterministic_mode, preserve_rng

__all__ = ["Trainer"]


class Trainer:
    """Train a model: fire events, run the composed step, and carry out requests of callbacks.

    With no algorithms, the weights after N steps are bit-identical to those of a plain PyTorch
    loop. The arguments are those of `TrainerOptions`.

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

    @takes_arguments_of(TrainerOptions)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = self._options = run_overrides(TrainerOptions(*args, **kwargs))
        if options.deterministic_mode:
            configure_deterministic_mode()
        self._plan = options.plan()
        self._in_call = self._resumed = False
        self._callback_states: dict[str, Any] = {}
        self._loaded: Path | None = None
        self.logger = Logger(self._plan.destinations)
        self._dispatcher = Dispatcher(
            self._plan, self.logger, check_effects=options.check_effects
        )
        point = options.resume_point()
        self._run_id = options.run_id() if point is None else point.run
        state = build_state(options, self._plan, point)
        with preserve_rng(), self._running(close_at_the_end=False):
            self._run = build_run(options, state, self._dispatcher, point)
            if options.nonfinite_loss == "rollback" and not options.dry_run:
                self._run.rollback = self._roll_back
            if point is not None:
                self._resume(point)
            options.attach(self._run)
            self._connect()

    @property
    def plan(self) -> Plan:
        """The plan of a run that starts now, global callbacks included."""
        return self._plan.with_global_callbacks(map(self._options.adopt, global_callbacks()))

    @property
    def state(self) -> State:
        """The state after the last finished batch."""
        return self._run.state

    def timeline(self) -> Timeline:
        """Return when each algorithm is active over the run: see `Plan.timeline`."""
        return self.plan.timeline(self.state.max_duration, self.state.epoch_length)  # type: ignore[arg-type]

    def fit(self, *, duration: TimeLike | None = None) -> State:
        """Train until `max_duration`, or for `duration` more, and return the last state.

        Args:
            duration: How much longer to train: "2ep", "100ba", or an integer of epochs. If the
                last fit ended within an epoch, the rest of it counts as the first.

        Raises:
            ValueError: An argument that training needs is missing, or training has ended.
        """
        if self._options.skips_fit():
            return self.state
        run, state = self._run, self._ready_to_fit(duration)
        progress = run.progress
        with preserve_rng(), self._running(), run.signals.handled():
            zero_grad(state)
            run.rates.set(state)
            if progress.fit_in_progress:  # resumed: the algorithms have acted at its start
                run.dispatcher.run_callbacks(Event.FIT_START, state)
            else:
                state.model.train()
                run.state = state = surgery(run.fire, Event.FIT_START, state)
                progress.num_fits, progress.fit_in_progress = progress.num_fits + 1, True
            description = self._describe(state)
            self.logger.log_hyperparameters(description)
            for recorder in self._recorders:
                recorder.begin(description, state)
            run.state = loop.fit(run, state)
            progress.fit_in_progress = False
        return run.state

    def train_batch(self, state: State) -> State:
        """Train on `state.batch`: one step, from `BATCH_START` to `AFTER_ZERO_GRAD`.

        The step depends on the state alone (its weights, batch, key and time), so it can be
        repeated by itself.
        """
        with self._with_plan():
            return self._run.step(state)

    def eval(self, eval_dataloader: Any = None) -> dict[str, dict[str, float]]:
        """Evaluate now, and return the results by evaluator and metric.

        Args:
            eval_dataloader: As in the constructor; that of the constructor if None.

        Raises:
            ValueError: There is no `eval_dataloader`.
        """
        run = self._run
        given = check.check_evaluators(eval_dataloader, self._options.metrics, None)
        evaluators = given or run.evaluation.evaluators
        if not evaluators:
            raise ValueError("eval needs an eval_dataloader; pass one here or to the Trainer.")
        with preserve_rng(), self._running():
            state = run.fire(Event.EVAL_STANDALONE_START, self.state)
            for evaluator in evaluators:
                state = evaluate(run.dispatcher, state, evaluator, run.evaluation.loss_weight)
            state = run.fire(Event.EVAL_STANDALONE_END, state)
        run.state = self.state.evolve(memory=state.memory, metrics=state.metrics)
        return {one.label: dict(state.metrics[one.label]) for one in evaluators}

    def predict(self, dataloader: Iterable[Any]) -> list[Any]:
        """Call the model on every batch of a loader, and return its outputs on the CPU."""
        loader = check.check_loader("dataloader", dataloader)
        with preserve_rng(), self._running():
            self._run.state, outputs = predict(self._run.dispatcher, self.state, loader)
        return outputs

    def add_callback(
        self, callback: Callback | type[Callback] | Callable[..., Control | None]
    ) -> Callback:
        """Add a callback or a logger, which runs after the others, from the next call on.

        It does not run in a fit that is in progress, and misses the events of the constructor.

        Args:
            callback: A callback, a logger, a class of either, which is called without arguments,
                or a function `(event, state, logger) -> Control | None`.

        Returns:
            The callback that was added; of a class, its instance.

        Raises:
            TypeError: It is something else, or the class cannot be called without arguments.
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
        self._plan = self._plan.with_callback(self._options.adopt(callback))
        self._connect()
        return callback

    def save_checkpoint(
        self, path: str | Path, *, weights_only: bool = False, overwrite: bool = False
    ) -> Path:
        """Save the run between two calls of `fit`.

        While `fit` runs, a callback requests `Control.SAVE` instead.

        Args:
            path: The checkpoint, a folder; its parent folders are made.
            weights_only: Save the model alone.
            overwrite: Replace an existing checkpoint.

        Raises:
            RuntimeError: It was called while the Trainer runs.
            CheckpointError: The checkpoint cannot be written.
        """
        if self._in_call:
            raise RuntimeError(
                "save_checkpoint was called while the Trainer runs; return Control.SAVE from a "
                "callback instead."
            )
        target = Path(path)
        if self._options.dry_run:
            return target
        run, tree = self._describe(self.state), self._capture(weights_only)
        saved = Saved.of(self.state, run, tree, complete=not weights_only)
        make_folder(target.parent)
        return write(target, saved.tensors, saved.data, overwrite=overwrite, info=saved.info)

    # --- checkpoints ---

    @property
    def _savers(self) -> list[CheckpointSaver]:
        return [one for one in self._plan.callbacks if isinstance(one, CheckpointSaver)]

    @property
    def _recorders(self) -> list[RunRecorder]:
        return [one for one in self._plan.callbacks if isinstance(one, RunRecorder)]

    def _capture(self, weights_only: bool, state: State | None = None) -> dict[str, Any]:
        state = self.state if state is None else state
        if weights_only:
            return capture_weights(state)
        plan = self._plan
        return capture(self._run, state, (*plan.builtin_callbacks, *plan.user_callbacks))

    def _save(self, state: State) -> None:
        """Call the savers that requested a save, or all if another callback requested it."""
        for saver in [one for one in self._savers if one.wanted] or self._savers:
            saver.save(state, self._describe(state), lambda only: self._capture(only, state))

    def _connect(self) -> None:
        """Connect the savers to the run, and restore the states of callbacks."""
        if self._savers:
            self._run.checkpoints.save_function = self._save
            self._run.checkpoints.save_last = any(one.save_interval for one in self._savers)
        plan, saved = self._plan, self._callback_states
        named = named_callbacks((*plan.builtin_callbacks, *plan.user_callbacks))
        for name in named.keys() & saved.keys():
            try:
                named[name].load_state_dict(saved.pop(name))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise MismatchError(
                    f"{self._loaded} has a state of {name} that cannot be restored: "
                    f"{type(error).__name__}: {error} load_ignore_keys=['callbacks/{name}'] skips "
                    "it."
                ) from error

    def _restore(self, tree: Mapping[str, Any], path: Path) -> None:
        restore(self._run, tree, str(path))
        self._callback_states, self._loaded = dict(tree["callbacks"]), path

    def _resume(self, point: ResumePoint) -> None:
        run, ignored = self._run, self._options.load_ignore_keys
        if point.num_fits:  # algorithms may have replaced the model at the start of training
            run.state = surgery(run.dispatcher.run_algorithms, Event.FIT_START, run.state)
        tree = point.without(ignored, self._capture(False)) if ignored else point.tree
        self._restore(tree, point.path)
        self._resumed = True
        if not self._options.dry_run:
            point.warn_of_changes(self._describe(self.state))

    def _roll_back(self, error: NonFiniteLossError) -> State:
        """Restore the last checkpoint of this run."""
        run = self._run
        for saver in self._savers:
            saver.finish()
        point = latest_valid(self._savers[0].folder, run.state.device, run=self._run_id)
        if point is None:
            add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
            raise error
        counts = run.guard.state_dict()
        self._restore(point.tree, point.path)
        run.guard.load_state_dict(counts)
        self._connect()
        self.logger.log_metrics({"nonfinite/rolled_back": run.guard.num_rollbacks})
        return run.state

    # --- calls ---

    def _ready_to_fit(self, duration: TimeLike | None) -> State:
        """Check what training needs, and return the state to start from."""
        run, state, progress = self._run, self.state, self._run.progress
        check.check_ready(run, duration)
        if not self._resumed:
            run.dispatcher.clear()
        self._resumed = False
        unfinished = progress.fit_in_progress and not run.finished(state)
        if duration is not None and not (self._options.dry_run and unfinished):
            longer = check.check_duration(duration, "duration")
            progress.fit_in_progress = unfinished
            state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
        check.check_iterations(state.max_duration, run.iteration_length)
        check.check_countable("max_duration", state.max_duration, run.data.count_tokens)
        if not progress.fit_in_progress and run.finished(state):
            raise ValueError(
                f"max_duration={str(state.max_duration)!r} is reached, at {state!r}; call "
                "fit(duration=...) to train for longer."
            )
        return state

    @contextmanager
    def _running(self, *, close_at_the_end: bool = True) -> Iterator[None]:
        """Run with the current callbacks, and close them afterwards."""
        with (
            self._with_plan() as plan,
            closing(plan.callbacks if plan else (), at_the_end=close_at_the_end),
        ):
            yield

    @contextmanager
    def _with_plan(self) -> Iterator[Plan | None]:
        """Use the current plan, global callbacks included, for the length of a call.

        A call of the Trainer by a callback belongs to the call in progress, whose plan it uses.
        """
        if self._in_call:
            yield None
            return
        self._in_call = True
        plan = self.plan
        self._set_plan(plan)
        try:
            yield plan
        finally:
            self._set_plan(self._plan)
            self._in_call = False

    def _set_plan(self, plan: Plan) -> None:
        if plan is not self._dispatcher.plan:
            self._dispatcher.set_plan(plan)
            self.logger.destinations = plan.destinations
        if hasattr(self, "_run"):
            self._run.compose()

    def _describe(self, state: State) -> dict[str, Any]:
        """Describe the run as plain values."""
        return {
            "id": self._run_id,
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "requested_duration": str(self._run.progress.requested_duration),
            "epoch_length": state.epoch_length,
            "model": type(state.model).__name__,
            "algorithms": {a.name: repr(a) for a in self._plan.algorithms},
            "callbacks": [callback.name for callback in self._plan.callbacks],
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [repr(s) for s in self._run.rates.schedules],
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(),
        }
