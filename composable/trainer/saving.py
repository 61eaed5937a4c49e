"""Save a run, and restore it: when resuming, and when rolling back."""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import torch

from composable.checkpoint.errors import (
    CheckpointError,
    MismatchError,
    UnwritableCheckpointError,
)
from composable.checkpoint.folders import make_folder
from composable.checkpoint.manager import CheckpointManager
from composable.checkpoint.saved import Saved
from composable.core._notes import add_note
from composable.core.callback import Callback
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.state import State
from composable.runs.environment import describe_environment
from composable.trainer.best import Best, check_best, check_complete, find_best, load_best
from composable.trainer.description import (
    describe_hyperparameters,
    describe_plan,
    describe_request,
    describe_value,
    settings_of,
)
from composable.trainer.evaluated_weights import averaging_names
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.loaded_state import check
from composable.trainer.options import TrainerOptions
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.resume import ResumePoint, latest_valid
from composable.trainer.run import Run
from composable.trainer.run_lock import RunLock
from composable.trainer.run_state import (
    capture,
    capture_weights,
    named_callbacks,
    restore,
    upgraded,
)
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
        self._callback_states: dict[str, Any] = {}
        self._callback_settings: dict[str, Any] = {}
        self._loaded: Path | None = None
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
        return find_best(self.managers, self._loaded)

    def describe(self, state: State) -> dict[str, Any]:
        """Describe the run as plain values."""
        plan = self.session.own_plan
        return {
            "id": self.run_id,
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "requested_duration": str(self.run.progress.requested_duration),
            "epoch_length": state.epoch_length,
            "model": type(state.model).__name__,
            "algorithms": {a.name: describe_value(a) for a in plan.algorithms},
            "replaced_modules": {n: dict(one) for n, one in state.replaced_modules.items()},
            "callbacks": {
                n: settings_of(one) for n, one in named_callbacks(plan.callbacks).items()
            },
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
        with self.whole_weights():
            return self.run.engine.captured(self._capture(weights_only, state))

    def _capture(self, weights_only: bool, state: State) -> dict[str, Any]:
        if weights_only:
            return capture_weights(self.run, state)
        return capture(self.run, state, self.session.callbacks)

    def whole_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole weights, or a `DTensor` for each."""
        return self.run.engine.whole()

    def save(self, manager: CheckpointManager, state: State) -> None:
        """Save the run with a manager."""
        manager.save(
            state,
            self.describe(state),
            lambda only: self.capture(only, state),
            together=self.run.engine.writes_together(manager.settings.weights_only),
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
        if self.run.engine.writes_together(weights_only):
            return saved.write(path, overwrite=overwrite)
        return Path(processes.on_main(lambda: str(saved.write(path, overwrite=overwrite))))

    # --- restore ---

    def load_callbacks(self) -> None:
        """Restore the states of callbacks that have none yet: all of them, or none.

        Raises:
            MismatchError: A state does not fit its callback.
        """
        named, saved = named_callbacks(self.session.callbacks), self._callback_states
        pairs = match_callbacks(named, saved, self._callback_settings)
        before = {name: named[name].state_dict() for name in pairs}
        for name, key in pairs.items():
            try:
                named[name].load_state_dict(saved[key])
            except Exception as error:  # a callback may raise anything
                for other, state in before.items():
                    with suppress(Exception):
                        named[other].load_state_dict(state)
                raise MismatchError(
                    f"{self._loaded}: state/callbacks/{key} cannot be restored: "
                    f"{type(error).__name__}: {error} load_ignore_keys=['callbacks/{key}'] skips "
                    "it."
                ) from error
        for key in pairs.values():
            del saved[key]

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
        point = self._values_of(point)
        tree = point.without(ignored, self.capture(False)) if ignored else point.tree
        self._restore(tree, point)
        self.load_callbacks()
        run.state = algorithms(Event.AFTER_LOAD, run.state, lambda one: not is_surgery(one))
        run.dispatcher.run_callbacks(Event.AFTER_LOAD, run.state)
        self.resumed = True
        run.progress.resume(restart=point.restart)
        requested = self.hyperparameters
        self.hyperparameters = point.hyperparameters(requested, ignored)
        if self.options.dry_run:
            return
        point.warn_of_changes(self.describe(run.state), requested)
        if self.options.load_best_at_end:
            check_best(self.best)

    def _load_best(self, state: State) -> None:
        for manager in self.managers:
            manager.finish()
        self.options.processes.barrier()  # rank 0 has written it
        names, reader = averaging_names(self.run.dispatcher.plan), self.options.reader
        self.run.weights.best = load_best(state, names, self.best, reader, run=self.run_id)

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
        self._restore(self._values_of(point).tree, point)
        run.guard.load_state_dict(counts)
        if point.num_fits < run.progress.num_fits:  # a checkpoint of an earlier call of fit
            run.state = run.state.evolve(max_duration=whole)
        run.progress.load_state_dict(progress)
        self.session.logger.log_metrics({"nonfinite/rolled_back": run.guard.num_rollbacks})
        return run.state

    def _values_of(self, point: ResumePoint) -> ResumePoint:
        """Return a checkpoint with the values of its tensors, in the current format."""
        point = point.load(self.run.state)
        tree = upgraded(point.tree, averaging_names(self.run.dispatcher.plan))
        return attrs.evolve(point, tree=tree, outline=None)

    def _restore(self, tree: Mapping[str, Any], point: ResumePoint) -> None:
        with self.run.engine.restoring(tree, str(point.path)) as own:
            self._restore_run(own, point)

    def _restore_run(self, tree: Mapping[str, Any], point: ResumePoint) -> None:
        check(self.run, tree, str(point.path))
        self._callback_states, self._loaded = dict(tree["callbacks"]), point.path
        settings = point.description.get("callbacks")
        self._callback_settings = settings if isinstance(settings, dict) else {}
        self.load_callbacks()
        restore(self.run, tree, str(point.path))


def match_callbacks(
    named: Mapping[str, Callback], saved: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, str]:
    """Return the names of the saved states of callbacks, by the names of the callbacks.

    Several callbacks of one class are matched by their settings, and then by their order.

    Args:
        named: The callbacks of the run by name: `EarlyStopper`, `EarlyStopper 2`.
        saved: The states by such names.
        settings: The settings of the callbacks that were saved.
    """
    pairs: dict[str, str] = {}
    for by_settings in (True, False):
        for name, callback in named.items():
            own = re.compile(rf"{re.escape(callback.name)}( [0-9]+)?")
            keys = (key for key in saved if own.fullmatch(key) and key not in pairs.values())
            fits = (k for k in keys if not by_settings or settings.get(k) == settings_of(callback))
            if name not in pairs and (key := next(fits, None)) is not None:
                pairs[name] = key
    return pairs
