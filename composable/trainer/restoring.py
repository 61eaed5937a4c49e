"""Restore a run from a checkpoint: when resuming, when rolling back, and its best weights."""

from collections.abc import Mapping
from typing import Any

from composable._support.notes import add_note
from composable._support.warn import warn_user
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.filters import expanded, replaced
from composable.core.event import Event
from composable.core.state import State
from composable.optim.multi import schedule_free_parts
from composable.resume.best import (
    NoBestCheckpointWarning,
    check_best,
    check_determined,
)
from composable.resume.changes import saved_hyperparameters, warn_of_changes
from composable.resume.formats import is_old, upgraded
from composable.resume.modules import check_saved_module, module_tensors
from composable.resume.select import latest_valid, read_point
from composable.resume.verify import ResumePoint
from composable.trainer.checkpoints import Checkpoints
from composable.trainer.evaluated_weights import BestWeights, averaging_names
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.records import Records
from composable.trainer.run import Run

__all__ = ["RestoredCheckpoints", "checkpoint_values"]


class RestoredCheckpoints(Checkpoints):
    """The checkpoints of a run that is resumed, may be rolled back, or ends with its best weights.

    Raises:
        ValueError: No evaluation determines a best checkpoint, or it will not have everything on
            which evaluations depend.
    """

    def __init__(self, run: Run, records: Records) -> None:
        super().__init__(run, records)
        if self.options.load_best_at_end:
            trained = run.state.loss_module is not None and not self.options.dry_run
            check_determined(self.managers, self.options.evaluators, trains_loss=trained)

    def resume(self, point: ResumePoint) -> None:
        """Restore the run from a checkpoint, and fire `AFTER_LOAD`.

        Surgery at `AFTER_LOAD` is done before the values are restored, since they are those of its
        result. All other algorithms act on the restored values.
        """
        run, options, records = self.run, self.options, self.records
        algorithms = run.dispatcher.run_algorithms
        run.state = surgery(
            lambda event, state: algorithms(event, state, is_surgery), Event.AFTER_LOAD, run.state
        )
        records.describe_request()
        if point.num_fits:  # algorithms may have replaced the model at the start of training
            run.state = surgery(algorithms, Event.FIT_START, run.state)
        tree, ignored = checkpoint_values(run, point), options.load_ignore_keys
        if ignored:
            tree = replaced(tree, self.capture(False), expanded(ignored))
        self.restore(tree, point)
        self.mark_saved(run.state)
        run.engine.check_weights(run.state)
        run.state = algorithms(Event.AFTER_LOAD, run.state, lambda one: not is_surgery(one))
        run.dispatcher.run_callbacks(Event.AFTER_LOAD, run.state)
        self.resumed = True
        run.progress.resume(restart=point.restart)
        requested = records.hyperparameters
        records.hyperparameters = saved_hyperparameters(point.description, requested, ignored)
        if options.dry_run:
            return
        warn_of_changes(point.path, point.description, records.describe(run.state), requested)
        if options.load_best_at_end:
            check_best(self.best)

    def roll_back(self, error: NonFiniteLossError) -> State:
        """Restore the last checkpoint of this run, but for the counts of its guard and its calls.

        Raises:
            NonFiniteLossError: That is not requested, or there is none.
        """
        run, options = self.run, self.options
        if options.nonfinite_loss != "rollback" or options.dry_run:
            raise error
        run.guard.record_rollback(error)
        self.finish()
        folder = self.managers[0].settings.folder
        point = latest_valid(folder, options.reader, run=self.records.run_id)
        if point is None:
            add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
            raise error
        whole = run.state.max_duration
        self.restore(checkpoint_values(run, point), point, but=("guard", "progress"))
        self.mark_saved(run.state)
        if point.num_fits < run.progress.num_fits:  # a checkpoint of an earlier call of fit
            run.state = run.state.evolve(max_duration=whole)
        rolled_back = {"nonfinite/rolled_back": run.guard.num_rollbacks}
        self.session.logger.log_metrics(rolled_back)
        return run.state

    def save_end(self, state: State) -> State:
        """Save the end of training, and load the best weights if that is requested."""
        state = super().save_end(state)
        if self.options.load_best_at_end and not self.options.dry_run:
            self._load_best(state)
        return state

    def _load_best(self, state: State) -> None:
        """Let the run be evaluated with the weights of its best checkpoint, if there is one."""
        self.finish()
        best, run = self.best, self.run
        if best is None:
            warn_user(
                "load_best_at_end=True, but no evaluation had a result that selects a best "
                "checkpoint (NaN never does), so the model keeps its last weights.",
                NoBestCheckpointWarning,
            )
            return
        point = read_point(best.checkpoint, self.options.reader, run=self.records.run_id)
        tree, names = point.load(state).tree, averaging_names(run.dispatcher.plan)
        run.weights.best = _best_weights(state, tree, names, str(point.path))


def checkpoint_values(run: Run, point: ResumePoint) -> dict[str, Any]:
    """Return the state of a checkpoint with its values, in the current format."""
    return upgraded(point.load(run.state).tree, averaging_names(run.dispatcher.plan))


def _best_weights(
    state: State, saved: Mapping[str, Any], names: set[str], path: str
) -> BestWeights:
    """Return the weights with which a saved run was evaluated.

    Args:
        state: The state of a run with the same model.
        saved: What `RunPart` returned, or its weights alone.
        names: The algorithms whose averages and memory belong to the weights.
        path: Where it was read, for errors.

    Raises:
        MismatchError: It has no weights of this model or of its loss.
    """
    modules = state.modules
    old, saved = is_old(saved), upgraded(saved, names)
    if old and schedule_free_parts(state.optimizers):
        raise MismatchError(
            f"{path} was written by an earlier version, which did not save the averages of "
            "schedule-free optimizers; pass load_best_at_end=False, and resume from it to evaluate "
            "them."
        )
    if missing := sorted(modules.keys() - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}, on which evaluations depend; do not exclude it "
            "with save_weights_only or save_ignore_keys."
        )
    found: dict[str, dict[str, Any]] = {"model": {}, "loss_fn": {}}
    for key, module in modules.items():
        check_saved_module(module, saved[key], path, key)
        own, values = module_tensors(module), {**saved[key]["weights"], **saved[key]["buffers"]}
        found[key] = {name: values[name] for name in own}
    averages = {n: v for n, v in saved.get("averages", {}).items() if n in names}
    for average in averages.values() if old else ():
        found["model"] |= {n: value.to(found["model"][n]) for n, value in average.items()}
    memory = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return {
        "model": found["model"],
        "loss_fn": found["loss_fn"],
        "averages": averages,
        "memory": memory,
    }
