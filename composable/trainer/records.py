"""The description of a run, in its checkpoints, logs and records."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import torch

from composable._support.warn import warn_user
from composable.checkpoint.errors import CheckpointError, UnwritableCheckpointError
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.runs.environment import describe_environment
from composable.storage.folders import address, remote_at
from composable.trainer.description import (
    describe_hyperparameters,
    describe_plan,
    describe_request,
    describe_value,
    settings_of,
)
from composable.trainer.options import TrainerOptions
from composable.trainer.run import Run
from composable.trainer.session import Session, named_callbacks

if TYPE_CHECKING:
    from composable.resume.lock import RunLock
    from composable.storage.remote_folder import RemoteFolder


_ENTRIES = ("metrics_files", "metrics_paths", "logger_runs")
"""What the record of a run has of its loggers."""


@attrs.define(eq=False)
class Records:
    """The description of a run, and its records.

    Args:
        options: The arguments of the `Trainer`.
        session: Its plan, with the recorders.
        run: The run.
        run_id: Its id, which tells its checkpoints from other runs'.
        lock: The lock of its folder.
    """

    options: TrainerOptions
    session: Session
    run: Run
    run_id: str
    lock: "RunLock | None" = None
    hyperparameters: dict[str, Any] = attrs.field(init=False)
    """The hyperparameters of the run: the requested ones, or the checkpoint's."""
    _request: dict[str, Any] = attrs.field(init=False)
    _environment: dict[str, Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hyperparameters = describe_hyperparameters(self.run)
        self.describe_request()
        self._describe_environment()

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
            "replaced_modules": {n: dict(module) for n, module in state.replaced_modules.items()},
            "callbacks": {name: settings_of(callback) for name, callback in callbacks.items()},
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
        from composable.checkpoint.atomic import make_folder  # on use

        options, remote = self.options, remote_at(self.options.save_folder)
        with suppress(OSError, UnwritableCheckpointError):  # the savers raise or warn, as requested
            make_folder(self.lock.folder)
            self.lock.acquire()
        try:
            if remote is not None:
                replaces = options.autoresume or options.save_overwrite
                with suppress(UnwritableCheckpointError):  # as above
                    remote.claim(self.run_id, takes_over=replaces)
            if options.autoresume and not self.run.progress.num_fits:
                self._continue_logs()
            yield
        finally:
            self.lock.release()
            if remote is not None:
                _copy_last_rows(remote)

    def begin(self, logger: Logger) -> None:
        """Log and record the configuration of the run, after all processes have compared theirs."""
        self._describe_environment()
        state, folder = self.run.state, self.options.save_folder
        description = self.describe(state)
        savers = self.run.checkpoints.describe()
        engine, data = self.run.engine, {}
        if engine.processes.several and not engine.is_local:
            from composable.data.sharding import describe_dataset  # on use

            data = {"dataset": describe_dataset(self.run.data.loader)}
        engine.begin({**description, "savers": savers, **data}, self.run.dispatcher)
        if folder is not None and remote_at(folder) is None and engine.processes.several:
            from composable.resume.lock import check_shared  # on use

            needed = engine.writes_together(self.options.save_weights_only)
            check_shared(folder, self.lock, needed=needed)
        self.run.join_requests(Event.FIT_START)
        where = {} if folder is None else {"save_folder": address(folder)}
        logger.log_hyperparameters({**description, **where})
        if self.run.recorders:
            self._begin_records(description, state)

    def _begin_records(self, description: dict[str, Any], state: State) -> None:
        """Record the configuration of a run, its plan, and its metrics files."""
        entries = {name: logger.run_entries() for name, logger in self._loggers().items()}
        record = {
            **description,
            **{key: {n: one[key] for n, one in entries.items() if key in one} for key in _ENTRIES},
            "plan": describe_plan(self.session.own_plan),
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
            records = read_records(self.lock.folder)  # type: ignore[union-attr]
        except CheckpointError:
            return
        # Later records are of starts from a checkpoint that is lost, as on another machine.
        first = [record for record in records if not record["batch"]]
        for name, logger in self._loggers().items() if first else ():
            found = {k: first[-1][k] for k in _ENTRIES if isinstance(first[-1].get(k), dict)}
            logger.continue_run({key: named.get(name) for key, named in found.items()})


def _copy_last_rows(remote: "RemoteFolder") -> None:
    """Copy the end of the records; the savers have raised or warned if the store fails."""
    if remote.fails:
        return
    try:
        remote.finish()
    except CheckpointError as error:
        warn_user(f"the records of the end are in {remote.folder} only: {error}", UserWarning)
