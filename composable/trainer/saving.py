"""Save and record a run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composable.checkpoint.errors import CheckpointError, UnwritableCheckpointError
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.distributed.processes import Processes
from composable.runs.environment import describe_environment
from composable.trainer.callback_states import CallbackStates, named_callbacks
from composable.trainer.description import (
    describe_hyperparameters,
    describe_plan,
    describe_request,
    describe_value,
    settings_of,
)
from composable.trainer.options import TrainerOptions
from composable.trainer.run import Run
from composable.trainer.session import Session

# What only a run imports that is saved or resumed.
if TYPE_CHECKING:
    from composable.resume.best import Best
    from composable.resume.lock import RunLock
    from composable.resume.manager import CheckpointManager
    from composable.resume.parts import Parts

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
        lock: "RunLock | None" = None,
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
        self.describe_request()
        self._describe_environment()
        self.callbacks = CallbackStates(session)
        """The states of the callbacks, of which those that are added later have theirs restored."""
        run.checkpoints.save_with = self.save

    @property
    def managers(self) -> "list[CheckpointManager]":
        """What writes the checkpoints."""
        return self.run.checkpoints.managers

    @property
    def best(self) -> "Best | None":
        """The best checkpoint so far."""
        from composable.resume.best import find_best  # on use

        return find_best(self.managers, self.callbacks.path)

    def describe_request(self) -> None:
        """Describe the request before training, in which settings of layers may be changed."""
        self._request = describe_request(self.options, self.run.state.model)

    def _describe_environment(self) -> None:
        """Describe the environment in which the run was built, or last trained."""
        self._environment = describe_environment(command=self.options.record_command)

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
            **self._environment,
        }

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
        from composable.checkpoint.folders import make_folder  # on use

        with suppress(OSError, UnwritableCheckpointError):  # the savers raise or warn, as requested
            make_folder(self.lock.folder)
            self.lock.acquire()
        try:
            if self.options.autoresume and not self.run.progress.num_fits:
                self._continue_logs()
            yield
        finally:
            self.lock.release()

    def begin(self, logger: Logger) -> None:
        """Log and record the configuration of the run, after all processes have compared theirs."""
        self._describe_environment()
        state, folder = self.run.state, self.options.save_folder
        description = self.describe(state)
        self.run.engine.begin(description, self.run.dispatcher)
        self.run.join_requests(Event.FIT_START)
        where = {} if folder is None else {"save_folder": str(folder)}
        logger.log_hyperparameters({**description, **where})
        if self.run.recorders:
            self._begin_records(description, state)

    def _begin_records(self, description: dict[str, Any], state: State) -> None:
        """Record the configuration of a run, its plan, and its metrics files."""
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
        from composable.trainer.run_part import RunPart  # on use

        if weights_only:
            return {**RunPart(self.run, state).weights()}
        return self.parts(state).capture()

    def parts(self, state: State) -> "Parts":
        """Return the parts of the run at a state, in the order in which they are restored.

        That of callbacks is the only one that may fail after it was checked, so it is the first.
        """
        from composable.resume.parts import ALL, Parts  # on use
        from composable.trainer.run_part import RunPart

        whole = RunPart(self.run, state)
        return Parts({"callbacks": self.callbacks, ALL: whole, **self.run.parts})

    def whole_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole weights, or a `DTensor` for each."""
        return self.run.engine.whole()

    def save(self, manager: "CheckpointManager", state: State) -> None:
        """Save the run with a manager."""
        self.run.data.gather_positions()
        manager.save(
            state,
            self.describe(state),
            lambda only: self.capture(only, state),
            together=self.run.engine.writes_together(manager.settings.weights_only),
        )

    def write(self, path: Path, *, weights_only: bool, overwrite: bool) -> Path:
        """Write a checkpoint between two calls."""
        from composable.checkpoint.folders import make_folder  # on use
        from composable.checkpoint.saved import Saved

        self.session.check_override()
        if self.options.dry_run:
            return path
        processes = Processes.current()
        self.run.data.gather_positions()
        state, tree = self.run.state, self.capture(weights_only)
        saved = Saved.of(state, self.describe(state), tree, complete=not weights_only)
        processes.on_main(lambda: make_folder(path.parent))
        if self.run.engine.writes_together(weights_only):
            return saved.write(path, overwrite=overwrite)
        return Path(processes.on_main(lambda: str(saved.write(path, overwrite=overwrite))))
