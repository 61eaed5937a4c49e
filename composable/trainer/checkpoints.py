"""The checkpoints of a run: when it is saved, what they hold, and when it is restored."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composable._support.notes import add_note
from composable._support.object_stores import OPEN
from composable._support.warn import warn_user
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.filters import expanded, replaced
from composable.core.control import Control
from composable.core.event import Event
from composable.core.state import State
from composable.distributed.processes import Processes
from composable.distributed.starting import in_phase
from composable.resume.changes import check_updates, entry, saved_hyperparameters, warn_of_changes
from composable.resume.modules import check_saved_module, module_tensors
from composable.trainer.description import describe_hyperparameters, describe_value
from composable.trainer.evaluated_weights import BestWeights, averaging_names
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.records import Records
from composable.trainer.run import Run, UnsupportedRequestWarning
from composable.trainer.session import CallbackStates
from composable.trainer.undo import restore_attributes, restore_run, undone_on_error

# What only a run imports that is saved or resumed.
if TYPE_CHECKING:
    from composable.resume.best import Best
    from composable.resume.foreign import ForeignPoint
    from composable.resume.manager import CheckpointManager
    from composable.resume.parts import Parts
    from composable.resume.verify import ResumePoint


class Checkpoints:
    """The checkpoints of a run.

    Args:
        run: The run.
        records: Its description, which each checkpoint has.

    Raises:
        ValueError: No evaluation determines a best checkpoint to load at the end, or it will not
            have everything on which evaluations depend.
    """

    def __init__(self, run: Run, records: Records) -> None:
        self.run, self.records = run, records
        self.options, self.session = records.options, records.session
        self.managers: list[CheckpointManager] = []
        """What writes the checkpoints: one manager for each saver in the current plan."""
        self.callbacks = CallbackStates(self.session)
        """The states of the callbacks, of which those that are added later have theirs restored."""
        self.resumed = False
        """Whether the run was restored, and training has not been called since."""
        self._saved_at: Any = None
        run.checkpoints = self
        run.compose()
        if self.options.load_best_at_end:
            from composable.resume.best import check_determined  # on use

            trained = run.state.loss_module is not None and not self.options.dry_run
            check_determined(self.managers, self.options.evaluators, trains_loss=trained)

    @property
    def best(self) -> "Best | None":
        """The best checkpoint so far."""
        from composable.resume.best import find_best  # on use

        return find_best(self.managers, self.callbacks.path)

    def describe(self) -> list[dict[str, Any]]:
        """Describe when checkpoints are written, and of what: the same on every process."""
        names = ("save_interval", "weights_only", "background", "metric", "mode")
        savers = [manager.settings for manager in self.managers]
        return [{n: describe_value(getattr(saver, n)) for n in names} for saver in savers]

    # --- during training ---

    def save_requested(self, state: State) -> State:
        """Save if a callback requested it."""
        run = self.run
        if not (run.dispatcher.pending and run.dispatcher.pop(Control.SAVE)):
            return state
        if not self.managers:
            warn_user(
                "a callback requested Control.SAVE, which this Trainer cannot do; pass a "
                "save_folder.",
                UnsupportedRequestWarning,
            )
            return state
        state = self.save(state)
        run.join_requests(Event.AFTER_SAVE)
        return state

    def save_end(self, state: State) -> State:
        """Save the end, unless it has just been saved; load the best weights if requested."""
        due = any(manager.settings.save_interval or manager.improved for manager in self.managers)
        state = self.save_outdated(state) if due else state
        if any(manager.settings.background for manager in self.managers):
            self.finish()
        if self.options.load_best_at_end and not self.options.dry_run:
            self._load_best(state)
        return state

    def finish(self) -> None:
        """Wait until rank 0 has written what it writes in the background."""
        for manager in self.managers:
            manager.finish()
        self.options.processes.barrier()

    def save_outdated(self, state: State) -> State:
        """Save the run if anything was done since the last save."""
        return state if self._saved_at == self._progress(state) else self.save(state)

    @in_phase("a save")
    def save(self, state: State) -> State:
        """Save the run."""
        run, began = self.run, time.perf_counter()
        run.guard.flush()  # every checkpoint is safe to resume from
        state = run.fire(Event.BEFORE_SAVE, state)
        self.mark_saved(state)
        managers = [one for one in self.managers if one.wanted] or self.managers
        for manager in managers:
            self.gather()
            manager.save(
                state,
                self.records.describe(state),
                lambda only: self.capture(only, state),
                together=run.engine.writes_together(manager.settings.weights_only),
            )
        if not all(one.settings.background for one in managers):
            # Rank 0 writes; at AFTER_SAVE the checkpoint is there, on every rank.
            self.options.processes.barrier()
        state = run.fire(Event.AFTER_SAVE, state)
        run.seconds["checkpoints"] += time.perf_counter() - began
        return state

    def gather(self) -> None:
        """Gather what a checkpoint has of all processes, before it is saved."""
        self.run.data.gather_positions()
        if self.run.train_metrics is not None:
            self.run.train_metrics.gather()

    def mark_saved(self, state: State) -> None:
        """Record that `state` is saved."""
        self._saved_at = self._progress(state)

    def _progress(self, state: State) -> Any:
        now = state.timestamp
        return now.epoch, now.batch, self.run.evaluation.last_run.copy()

    # --- what a checkpoint holds ---

    @in_phase("a save")
    def write(self, path: Path, *, weights_only: bool, overwrite: bool) -> Path:
        """Write a checkpoint between two calls."""
        from composable.checkpoint.atomic import make_folder  # on use
        from composable.resume.parts import Saved

        self.session.check_override()
        if self.options.dry_run:
            return path
        processes, remote = Processes.current(), OPEN.get(path.parent)
        if remote is not None:
            processes.on_main(lambda: remote.claim(self.records.run_id))
        self.gather()
        state, tree = self.run.state, self.capture(weights_only)
        saved = Saved.of(state, self.records.describe(state), tree, complete=not weights_only)
        processes.on_main(lambda: make_folder(path.parent))
        if self.run.engine.writes_together(weights_only):
            saved.write(path, overwrite=overwrite)
        else:
            processes.on_main(lambda: str(saved.write(path, overwrite=overwrite)))
        if remote is not None:
            processes.on_main(remote.finish)
        return path.absolute()

    def capture(self, weights_only: bool, state: State | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        from composable.trainer.run_part import RunPart  # on use

        state = self.run.state if state is None else state
        with self.run.engine.whole():  # whole weights, or a `DTensor` for each
            if weights_only:
                return self.run.engine.captured({**RunPart(self.run, state).weights()})
            return self.run.engine.captured(self.parts(state).capture())

    @contextmanager
    def loaded(
        self,
        tree: Mapping[str, Any],
        point: "ResumePoint | ForeignPoint",
        but: Collection[str] = (),
    ) -> Iterator[None]:
        """Restore a checkpoint; if that or the block fails, the run is left as it was.

        Until the end of the block it takes the memory of a second copy of the parameters and
        buffers, on the host if the device's memory is full, and keeps the old state of optimizers.

        Args:
            tree: What `capture` returned.
            point: The checkpoint.
            but: The names of parts that stay as they are.

        Raises:
            MismatchError: It belongs to another run.
            DamagedCheckpointError: It does not belong to a run.
        """
        path, run = str(point.path), self.run
        parts = self.parts(run.state)
        parts.check(tree, path)
        undo = [restore_attributes(self.callbacks), *restore_run(run)]
        with undone_on_error(undo):
            if point.run is not None:
                self.callbacks.follow(point.path, point.description, tree["callbacks"])
                undo += self.callbacks.undo()
            with run.engine.restoring(tree, path) as own:
                parts.restore(own, path, but)
            yield

    def parts(self, state: State) -> "Parts":
        """Return the parts of the run at a state, in the order in which they are restored."""
        from composable.resume.parts import ALL, Parts  # on use
        from composable.trainer.run_part import RunPart

        whole = RunPart(self.run, state)
        return Parts({ALL: whole, **self.run.parts, "callbacks": self.callbacks})

    # --- restoring ---

    def resume(self, point: "ResumePoint") -> None:
        """Restore the run from a checkpoint, and fire `AFTER_LOAD`.

        Surgery at `AFTER_LOAD` is done before the values are restored, since they belong to its
        result. All other algorithms act on the restored values.
        """
        run, options, records = self.run, self.options, self.records
        check_updates(point.path, point.description, records.describe(run.state))
        algorithms = run.dispatcher.run_algorithms
        run.state = surgery(
            lambda event, state: algorithms(event, state, is_surgery), Event.AFTER_LOAD, run.state
        )
        records.describe_request()
        if point.num_fits:  # algorithms may have replaced the model at the start of training
            run.state = surgery(algorithms, Event.FIT_START, run.state)
        tree, ignored = point.load(run.state).tree, options.load_ignore_keys
        if ignored:
            tree = replaced(tree, self.capture(False), expanded(ignored))
        with self.loaded(tree, point):
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
                from composable.resume.best import check_best  # on use

                check_best(self.best)

    def adopt(self, point: "ForeignPoint") -> None:
        """Continue from a checkpoint of another trainer, and fire `AFTER_LOAD`.

        The states of callbacks, and of everything else that the checkpoint does not have, are
        initial.

        Raises:
            MismatchError: It does not fit the run, which is left as it was.
        """
        from composable.resume.foreign import ForeignCheckpointWarning  # on use
        from composable.trainer.foreign import describe_lost, foreign_tree

        run, options, records = self.run, self.options, self.records
        tree = foreign_tree(run, self.capture(False), point, options.load_ignore_keys)
        with self.loaded(tree, point, but=("callbacks",)):
            lost = describe_lost(run, point)
            run.state = surgery(run.fire, Event.AFTER_LOAD, run.state)
            records.describe_request()
            requested, now = records.hyperparameters, describe_hyperparameters(run)
            records.hyperparameters = now
            described = records.describe(run.state)
            if options.dry_run:
                return
            if lost:
                warn_user(lost, ForeignCheckpointWarning)
            warn_of_changes(point.path, described, described, requested)

    def roll_back(self, error: NonFiniteLossError) -> State:
        """Restore the last checkpoint of this run, but for the counts of its guard and its calls.

        Raises:
            NonFiniteLossError: That is not requested, or there is none.
        """
        run, options = self.run, self.options
        if options.nonfinite_loss != "rollback" or options.dry_run:
            raise error
        from composable.resume.select import latest_valid, share_folder  # on use

        run.guard.record_rollback(error)
        self.finish()
        folder = self.managers[0].settings.folder
        share_folder(folder)
        point = latest_valid(folder, options.reader, run=self.records.run_id)
        if point is None:
            add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
            raise error
        whole = run.state.max_duration
        with self.loaded(point.load(run.state).tree, point, but=("guard", "progress")):
            self.mark_saved(run.state)
        if point.num_fits < run.progress.num_fits:  # a checkpoint of an earlier call of fit
            run.state = run.state.evolve(max_duration=whole)
        rolled_back = {"nonfinite/rolled_back": run.guard.num_rollbacks}
        self.session.logger.log_metrics(rolled_back)
        return run.state

    def _load_best(self, state: State) -> None:
        """Let the run be evaluated with the weights of its best checkpoint, if there is one."""
        from composable.resume.best import NoBestCheckpointWarning  # on use
        from composable.resume.select import read_point, share_folder

        self.finish()
        best, run = self.best, self.run
        if best is None:
            warn_user(
                "load_best_at_end=True, but no evaluation had a result that selects a best "
                "checkpoint (NaN never does), so the model keeps its last weights.",
                NoBestCheckpointWarning,
            )
            return
        share_folder(best.checkpoint.parent)
        point = read_point(best.checkpoint, self.options.reader, run=self.records.run_id)
        tree, names = point.load(state).tree, averaging_names(run.dispatcher.plan)
        run.weights.best = _best_weights(state, tree, names, str(point.path))


def _best_weights(
    state: State, saved: Mapping[str, Any], names: set[str], path: str
) -> BestWeights:
    """Return the weights with which a saved run of the same model was evaluated.

    The averages and the memory of the named algorithms belong to them.
    """
    modules = state.modules
    if missing := sorted(modules.keys() - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}, on which evaluations depend; do not exclude it "
            "with save_weights_only or save_ignore_keys."
        )
    found: dict[str, dict[str, Any]] = {"model": {}, "loss_fn": {}}
    for key, module in modules.items():
        with entry(f"{path}: state"), entry(key):
            check_saved_module(module, saved[key], key)
        own, values = module_tensors(module), {**saved[key]["weights"], **saved[key]["buffers"]}
        found[key] = {name: values[name] for name in own}
    averages = {n: v for n, v in saved.get("averages", {}).items() if n in names}
    memory = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return {
        "model": found["model"],
        "loss_fn": found["loss_fn"],
        "averages": averages,
        "memory": memory,
    }
