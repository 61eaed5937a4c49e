"""Save a run, and restore it: when resuming, and when rolling back."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from composable.checkpoint.errors import CheckpointError, MismatchError, UnwritableCheckpointError
from composable.checkpoint.filters import expanded, replaced
from composable.checkpoint.folders import make_folder
from composable.checkpoint.saved import Saved
from composable.core._notes import add_note
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.state import State
from composable.distributed.deepspeed import DeepSpeedEngine
from composable.functional._lent import is_divided
from composable.resume.best import Best, check_best, check_complete, find_best, warn_of_none
from composable.resume.changes import saved_hyperparameters, warn_of_changes
from composable.resume.formats import upgraded
from composable.resume.lock import RunLock
from composable.resume.manager import CheckpointManager
from composable.resume.parts import ALL, ENGINE, Parts
from composable.resume.select import latest_valid, read_point
from composable.resume.verify import ResumePoint
from composable.runs.environment import describe_environment
from composable.trainer.callback_states import CallbackStates, named_callbacks
from composable.trainer.description import (
    describe_hyperparameters,
    describe_plan,
    describe_request,
    describe_value,
    settings_of,
)
from composable.trainer.evaluated_weights import averaging_names
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.options import TrainerOptions
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.run import Run
from composable.trainer.run_part import RunPart, best_weights
from composable.trainer.session import Session

__all__ = ["Saving"]

_ENTRIES = ("metrics_files", "metrics_paths", "logger_runs")
"""What the record of a run has of its loggers."""


class Saving:
    """The checkpoints and records of a run.

    Args:
        options: The arguments of the `Trainer`.
        session: Its plan, with the savers and recorders.
        run: The run.
        run_id: Its id, which tells its checkpoints from those of other runs.
        lock: The lock of its folder.
    """

    def __init__(
        self,
        options: TrainerOptions,
        session: Session,
        run: Run,
        run_id: str,
        lock: RunLock | None = None,
    ) -> None:
        self.options = options
        self.lock = lock
        self.session = session
        self.run = run
        self.run_id = run_id
        self.resumed = False
        """Whether the run was restored, and training has not been called since."""
        self.hyperparameters = describe_hyperparameters(run)
        """The hyperparameters of the run: the requested ones, or those of the checkpoint."""
        # Before training, during which algorithms may change the settings of layers.
        self._request = describe_request(options, run.state.model)
        self.callbacks = CallbackStates(session)
        """The states of the callbacks, of which those that are added later have theirs restored."""
        run.checkpoints.save_with = self.save
        if options.nonfinite_loss == "rollback" and not options.dry_run:
            run.rollback = self.roll_back
        if options.load_best_at_end and not options.dry_run:
            check_complete(run.state, self.managers)
            run.checkpoints.load_best = self._load_best

    @property
    def managers(self) -> list[CheckpointManager]:
        """What writes the checkpoints."""
        return self.run.checkpoints.managers

    @property
    def best(self) -> Best | None:
        """The best checkpoint so far."""
        return find_best(self.managers, self.callbacks.path)

    def describe(self, state: State) -> dict[str, Any]:
        """Describe the run as plain values."""
        plan = self.session.own_plan
        callbacks = named_callbacks(plan.callbacks)
        return {
            "id": self.run_id,
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "requested_duration": str(self.run.progress.requested_duration),
            "epoch_length": state.epoch_length,
            "model": type(state.model).__name__,
            "algorithms": {a.name: describe_value(a) for a in plan.algorithms},
            "replaced_modules": {n: dict(one) for n, one in state.replaced_modules.items()},
            "callbacks": {name: settings_of(one) for name, one in callbacks.items()},
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [describe_value(schedule) for schedule in self.run.rates.schedules],
            "hyperparameters": self.hyperparameters,
            **self._request,
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(command=self.options.record_command),
        }

    def with_folder(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return the description of the run, with the folder of its checkpoints for loggers."""
        folder = self.options.save_folder
        return description if folder is None else {**description, "save_folder": str(folder)}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder of the run for the length of a call of `fit`.

        Raises:
            FolderInUseError: Another process trains in it.
        """
        self.session.check_override()
        if self.lock is None:
            yield
            return
        with suppress(OSError, UnwritableCheckpointError):  # the savers raise or warn, as requested
            make_folder(self.lock.folder)
            self.lock.acquire()
        try:
            if self.options.autoresume and not self.run.progress.num_fits:
                self._continue_logs()
            yield
        finally:
            self.lock.release()

    def begin(self, description: dict[str, Any], state: State) -> None:
        """Record the configuration of a run, its plan, and its metrics files."""
        if not self.run.recorders:
            return
        entries = {name: one.run_entries() for name, one in self._loggers().items()}
        record = {
            **description,
            **{key: {n: one[key] for n, one in entries.items() if key in one} for key in _ENTRIES},
            "plan": describe_plan(self.session.own_plan, state),
        }
        for recorder in self.run.recorders:
            recorder.begin(record, state)

    @contextmanager
    def recording_end(self) -> Iterator[None]:
        """Record the end of a call of `fit`, and the error that caused it."""
        try:
            yield
        except BaseException as error:
            with suppress(UnwritableCheckpointError):  # the first error says more
                self._record_end(error)
            raise
        self._record_end(None)

    def _record_end(self, error: BaseException | None) -> None:
        for recorder in self.run.recorders:
            recorder.end(self.run.state, error)

    def _loggers(self) -> dict[str, LoggerDestination]:
        named = named_callbacks(self.session.callbacks)
        return {name: one for name, one in named.items() if isinstance(one, LoggerDestination)}

    def _continue_logs(self) -> None:
        """Continue the logs of this run, which was killed without a checkpoint.

        Lines of JSON are moved aside. Other back ends continue the run that they had begun.
        """
        from composable.runs.records import read_records  # on use: it is slow to import

        try:
            last = read_records(self.lock.folder)[-1]  # type: ignore[union-attr]
        except CheckpointError:
            return
        if last["batch"]:
            return
        for name, logger in self._loggers().items():
            found = {key: last[key] for key in _ENTRIES if isinstance(last.get(key), dict)}
            logger.continue_run({key: named.get(name) for key, named in found.items()})

    # --- save ---

    def capture(self, weights_only: bool, state: State | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        state = self.run.state if state is None else state
        engine = self._engine
        if engine is None:
            return self._capture(weights_only, state)
        engine.check_saving(weights_only)
        with engine.whole():
            return engine.captured(self._capture(weights_only, state))

    def _capture(self, weights_only: bool, state: State) -> dict[str, Any]:
        if weights_only:
            return {**RunPart(self.run, state).weights()}
        return self.parts(state).capture()

    def parts(self, state: State) -> Parts:
        """Return the parts of the run at a state, in the order in which they are restored.

        That of callbacks is the only one that may fail after it was checked, so it is the first.
        """
        whole = RunPart(self.run, state)
        return Parts({"callbacks": self.callbacks, ALL: whole, **self.run.parts})

    def whole_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole weights, or a `DTensor` for each."""
        return nullcontext() if self._engine is None else self._engine.whole()

    @property
    def _engine(self) -> DeepSpeedEngine | None:
        return None if self.run.parallel is None else self.run.parallel.engine

    def _writes_together(self, weights_only: bool) -> bool:
        """Return whether a checkpoint has parts of several processes."""
        if self._engine is not None:
            return self._engine.writes_together(weights_only)
        return is_divided(self.run.state.model)

    def save(self, manager: CheckpointManager, state: State) -> None:
        """Save the run with a manager."""
        manager.save(
            state,
            self.describe(state),
            lambda only: self.capture(only, state),
            together=self._writes_together(manager.settings.weights_only),
        )

    def write(self, path: Path, *, weights_only: bool, overwrite: bool) -> Path:
        """Write a checkpoint between two calls."""
        self.session.check_override()
        if self.options.dry_run:
            return path
        processes = self.options.processes
        state, tree = self.run.state, self.capture(weights_only)
        saved = Saved.of(state, self.describe(state), tree, complete=not weights_only)
        processes.on_main(lambda: make_folder(path.parent))
        if self._writes_together(weights_only):
            return saved.write(path, overwrite=overwrite)
        return Path(processes.on_main(lambda: str(saved.write(path, overwrite=overwrite))))

    # --- restore ---

    def resume(self, point: ResumePoint) -> None:
        """Restore the run from a checkpoint, and fire `AFTER_LOAD`.

        Surgery at `AFTER_LOAD` is done before the values are restored, since they are those of its
        result. All other algorithms act on the restored values.
        """
        run, ignored = self.run, self.options.load_ignore_keys
        algorithms = run.dispatcher.run_algorithms
        run.state = surgery(
            lambda event, state: algorithms(event, state, is_surgery), Event.AFTER_LOAD, run.state
        )
        self._request = describe_request(self.options, run.state.model)
        if point.num_fits:  # algorithms may have replaced the model at the start of training
            run.state = surgery(algorithms, Event.FIT_START, run.state)
        tree = self._values_of(point)
        if ignored:
            tree = replaced(tree, self.capture(False), expanded(ignored))
        self._restore(tree, point)
        run.state = algorithms(Event.AFTER_LOAD, run.state, lambda one: not is_surgery(one))
        run.dispatcher.run_callbacks(Event.AFTER_LOAD, run.state)
        self.resumed = True
        run.progress.resume(restart=point.restart)
        requested = self.hyperparameters
        self.hyperparameters = saved_hyperparameters(point.description, requested, ignored)
        if self.options.dry_run:
            return
        warn_of_changes(point.path, point.description, self.describe(run.state), requested)
        if self.options.load_best_at_end:
            check_best(self.best)

    def _load_best(self, state: State) -> None:
        for manager in self.managers:
            manager.finish()
        self.options.processes.barrier()  # rank 0 has written it
        if self.best is None:
            warn_of_none()
            return
        point = read_point(self.best.checkpoint, self.options.reader, run=self.run_id)
        tree, names = point.load(state).tree, averaging_names(self.run.dispatcher.plan)
        self.run.weights.best = best_weights(state, tree, names, str(point.path))

    def roll_back(self, error: NonFiniteLossError) -> State:
        """Restore the last checkpoint of this run.

        Raises:
            NonFiniteLossError: There is none.
        """
        run = self.run
        for manager in self.managers:
            manager.finish()
        point = latest_valid(self.managers[0].settings.folder, self.options.reader, run=self.run_id)
        if point is None:
            add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
            raise error
        counts, progress, whole = (
            run.guard.state_dict(),
            run.progress.state_dict(),
            run.state.max_duration,
        )
        self._restore(self._values_of(point), point)
        run.guard.load_state_dict(counts)
        if point.num_fits < run.progress.num_fits:  # a checkpoint of an earlier call of fit
            run.state = run.state.evolve(max_duration=whole)
        run.progress.load_state_dict(progress)
        self.session.logger.log_metrics({"nonfinite/rolled_back": run.guard.num_rollbacks})
        return run.state

    def _values_of(self, point: ResumePoint) -> dict[str, Any]:
        """Return the state of a checkpoint with its values, in the current format."""
        names = averaging_names(self.run.dispatcher.plan)
        return upgraded(point.load(self.run.state).tree, names)

    def _restore(self, tree: Mapping[str, Any], point: ResumePoint) -> None:
        engine, path = self._engine, str(point.path)
        self.callbacks.follow(point.path, point.description)
        if engine is None:
            if ENGINE in tree:
                raise MismatchError(
                    f"{path} was saved with deepspeed_config, and this run has none; "
                    "load_weights_only=True starts a new run from its weights."
                )
            self._restore_parts(tree, path)
            return
        try:
            engine.check(tree, path)
        except ValueError as error:
            raise MismatchError(str(error)) from None
        with engine.whole(writing=True):
            self._restore_parts(engine.own_part(tree), path)
        engine.load(tree[ENGINE])

    def _restore_parts(self, tree: Mapping[str, Any], path: str) -> None:
        parts, run = self.parts(self.run.state), self.run
        parts.check(tree, path)
        parts.restore(tree, path)
        run.checkpoints.mark_saved(run, run.state)
