"""Save a run, and restore it: when resuming, and when rolling back."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from composable.callbacks.checkpoint_saver import CheckpointSaver, Saved
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.folders import make_folder
from composable.core._notes import add_note
from composable.core.event import Event
from composable.core.state import State
from composable.runs.environment import describe_environment
from composable.runs.recorder import RunRecorder
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.options import TrainerOptions
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.resume import ResumePoint, latest_valid
from composable.trainer.run import Run
from composable.trainer.run_state import capture, capture_weights, named_callbacks, restore
from composable.trainer.session import Session

__all__ = ["Saving"]


class Saving:
    """The checkpoints and records of a run.

    Args:
        options: The arguments of the `Trainer`.
        session: Its plan, with the savers and recorders.
        run: The run.
        run_id: Its id, which tells its checkpoints from those of other runs.
    """

    def __init__(self, options: TrainerOptions, session: Session, run: Run, run_id: str) -> None:
        self.options = options
        self.session = session
        self.run = run
        self.run_id = run_id
        self.resumed = False
        """Whether the run was restored, and training has not been called since."""
        self._callback_states: dict[str, Any] = {}
        self._loaded: Path | None = None
        if options.nonfinite_loss == "rollback" and not options.dry_run:
            run.rollback = self.roll_back

    @property
    def savers(self) -> list[CheckpointSaver]:
        """The callbacks that write checkpoints."""
        return [c for c in self.session.own_plan.callbacks if isinstance(c, CheckpointSaver)]

    @property
    def recorders(self) -> list[RunRecorder]:
        """The callbacks that record the run."""
        return [c for c in self.session.own_plan.callbacks if isinstance(c, RunRecorder)]

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
            "algorithms": {a.name: _describe(a) for a in plan.algorithms},
            "callbacks": [callback.name for callback in plan.callbacks],
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "schedulers": [_describe(schedule) for schedule in self.run.rates.schedules],
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(),
        }

    # --- save ---

    def capture(self, weights_only: bool, state: State | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        state = self.run.state if state is None else state
        if weights_only:
            return capture_weights(state)
        return capture(self.run, state, self.session.callbacks)

    def save(self, state: State) -> None:
        """Call the savers that requested a save, or all if another callback requested it."""
        for saver in [one for one in self.savers if one.wanted] or self.savers:
            saver.save(state, self.describe(state), lambda only: self.capture(only, state))

    def write(self, path: Path, *, weights_only: bool, overwrite: bool) -> Path:
        """Write a checkpoint between two calls."""
        self.session.check_override()
        if self.options.dry_run:
            return path
        state, tree = self.run.state, self.capture(weights_only)
        saved = Saved.of(state, self.describe(state), tree, complete=not weights_only)
        from composable.checkpoint.files import write  # on use: it is slow to import

        make_folder(path.parent)
        return write(path, saved.tensors, saved.data, overwrite=overwrite, info=saved.info)

    # --- restore ---

    def connect(self) -> None:
        """Connect the savers to the run, and restore the states of callbacks."""
        if self.savers:
            self.run.checkpoints.save_function = self.save
            self.run.checkpoints.save_last = any(one.save_interval for one in self.savers)
        named, saved = named_callbacks(self.session.callbacks), self._callback_states
        for name in named.keys() & saved.keys():
            try:
                named[name].load_state_dict(saved.pop(name))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise MismatchError(
                    f"{self._loaded} has a state of {name} that cannot be restored: "
                    f"{type(error).__name__}: {error} load_ignore_keys=['callbacks/{name}'] skips "
                    "it."
                ) from error

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
        if point.num_fits:  # algorithms may have replaced the model at the start of training
            run.state = surgery(algorithms, Event.FIT_START, run.state)
        tree = point.without(ignored, self.capture(False)) if ignored else point.tree
        self._restore(tree, point.path)
        self.connect()  # callbacks have their states before they observe the event
        run.state = algorithms(Event.AFTER_LOAD, run.state, lambda one: not is_surgery(one))
        run.dispatcher.run_callbacks(Event.AFTER_LOAD, run.state)
        self.resumed = True
        if not self.options.dry_run:
            point.warn_of_changes(self.describe(run.state))

    def roll_back(self, error: NonFiniteLossError) -> State:
        """Restore the last checkpoint of this run.

        Raises:
            NonFiniteLossError: There is none.
        """
        run = self.run
        for saver in self.savers:
            saver.finish()
        point = latest_valid(self.savers[0].folder, run.state.device, run=self.run_id)
        if point is None:
            add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
            raise error
        counts = run.guard.state_dict()
        self._restore(point.tree, point.path)
        run.guard.load_state_dict(counts)
        self.connect()
        self.session.logger.log_metrics({"nonfinite/rolled_back": run.guard.num_rollbacks})
        return run.state

    def _restore(self, tree: Mapping[str, Any], path: Path) -> None:
        restore(self.run, tree, str(path))
        self._callback_states, self._loaded = dict(tree["callbacks"]), path


def _describe(value: object) -> str:
    """Return the `repr` of a value without addresses, which differ between equal runs."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
