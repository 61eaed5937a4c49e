"""Restore a run from a checkpoint: when resuming, when rolling back, and its best weights."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from composable.checkpoint.errors import MismatchError
from composable.checkpoint.filters import expanded, replaced
from composable.core._notes import add_note
from composable.core.event import Event
from composable.core.state import State
from composable.optim.schedule_free import ScheduleFree
from composable.resume.best import (
    check_best,
    check_complete,
    check_determined,
    warn_of_none,
)
from composable.resume.changes import saved_hyperparameters, warn_of_changes
from composable.resume.formats import is_old, upgraded
from composable.resume.modules import check_module, tensors_of
from composable.resume.select import latest_valid, read_point
from composable.resume.verify import ResumePoint
from composable.trainer.evaluated_weights import Weights, averaging_names
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.saving import Saving

__all__ = ["load_best", "prepare", "resume", "roll_back"]


def prepare(saving: Saving) -> None:
    """Let the run be rolled back, and have its best weights at the end, as far as requested.

    Raises:
        ValueError: No evaluation determines a best checkpoint, or it will not have everything on
            which evaluations depend.
    """
    options, run = saving.options, saving.run
    if options.load_best_at_end:
        check_determined(saving.managers, options.evaluators)
    if options.dry_run:
        return
    if options.nonfinite_loss == "rollback":
        run.rollback = partial(roll_back, saving)
    if options.load_best_at_end:
        check_complete(run.state, saving.managers)
        run.checkpoints.load_best = partial(load_best, saving)


def resume(saving: Saving, point: ResumePoint) -> None:
    """Restore the run from a checkpoint, and fire `AFTER_LOAD`.

    Surgery at `AFTER_LOAD` is done before the values are restored, since they are those of its
    result. All other algorithms act on the restored values.
    """
    run, options = saving.run, saving.options
    algorithms = run.dispatcher.run_algorithms
    run.state = surgery(
        lambda event, state: algorithms(event, state, is_surgery), Event.AFTER_LOAD, run.state
    )
    saving.describe_request()
    if point.num_fits:  # algorithms may have replaced the model at the start of training
        run.state = surgery(algorithms, Event.FIT_START, run.state)
    tree, ignored = _values_of(saving, point), options.load_ignore_keys
    if ignored:
        tree = replaced(tree, saving.capture(False), expanded(ignored))
    _restore(saving, tree, point)
    run.engine.check_weights(run.state)
    run.state = algorithms(Event.AFTER_LOAD, run.state, lambda one: not is_surgery(one))
    run.dispatcher.run_callbacks(Event.AFTER_LOAD, run.state)
    saving.resumed = True
    run.progress.resume(restart=point.restart)
    requested = saving.hyperparameters
    saving.hyperparameters = saved_hyperparameters(point.description, requested, ignored)
    if options.dry_run:
        return
    warn_of_changes(point.path, point.description, saving.describe(run.state), requested)
    if options.load_best_at_end:
        check_best(saving.best)


def roll_back(saving: Saving, error: NonFiniteLossError) -> State:
    """Restore the last checkpoint of this run, but for the counts of its guard and of its calls.

    Raises:
        NonFiniteLossError: There is none.
    """
    run, managers = saving.run, saving.managers
    for manager in managers:
        manager.finish()
    reader = saving.options.reader
    point = latest_valid(managers[0].settings.folder, reader, run=saving.run_id)
    if point is None:
        add_note(error, "there is no checkpoint to roll back to; save at shorter intervals.")
        raise error
    whole = run.state.max_duration
    _restore(saving, _values_of(saving, point), point, but=("guard", "progress"))
    if point.num_fits < run.progress.num_fits:  # a checkpoint of an earlier call of fit
        run.state = run.state.evolve(max_duration=whole)
    saving.session.logger.log_metrics({"nonfinite/rolled_back": run.guard.num_rollbacks})
    return run.state


def load_best(saving: Saving, state: State) -> None:
    """Let the run be evaluated with the weights of its best checkpoint, if there is one."""
    for manager in saving.managers:
        manager.finish()
    saving.options.processes.barrier()  # rank 0 has written it
    best, run = saving.best, saving.run
    if best is None:
        warn_of_none()
        return
    point = read_point(best.checkpoint, saving.options.reader, run=saving.run_id)
    tree, names = point.load(state).tree, averaging_names(run.dispatcher.plan)
    run.weights.best = _best_weights(state, tree, names, str(point.path))


def _values_of(saving: Saving, point: ResumePoint) -> dict[str, Any]:
    """Return the state of a checkpoint with its values, in the current format."""
    names = averaging_names(saving.run.dispatcher.plan)
    return upgraded(point.load(saving.run.state).tree, names)


def _restore(
    saving: Saving, tree: Mapping[str, Any], point: ResumePoint, but: Collection[str] = ()
) -> None:
    path, run = str(point.path), saving.run
    saving.callbacks.follow(point.path, point.description)
    with run.engine.restoring(tree, path) as own:
        parts = saving.parts(run.state)
        parts.check(own, path)
        parts.restore(own, path, but)
        run.checkpoints.mark_saved(run, run.state)


def _best_weights(state: State, saved: Mapping[str, Any], names: set[str], path: str) -> Weights:
    """Return the weights with which a saved run was evaluated.

    Args:
        state: The state of a run with the same model.
        saved: What `RunPart` returned, or its weights alone.
        names: The algorithms whose averages and memory belong to the weights.
        path: Where it was read, for errors.

    Raises:
        MismatchError: It has no weights of this model or of its loss.
    """
    modules = {"model": state.model}
    if state.loss_module is not None:
        modules["loss_fn"] = state.loss_module
    old, saved = is_old(saved), upgraded(saved, names)
    if old and any(isinstance(one, ScheduleFree) for one in state.optimizers):
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
    found = {}
    for key, module in modules.items():
        check_module(module, saved[key], path, key)
        own, values = tensors_of(module), {**saved[key]["weights"], **saved[key]["buffers"]}
        found[key] = {name: values[name] for name in own}
    averages = {n: v for n, v in saved.get("averages", {}).items() if n in names}
    for average in averages.values() if old else ():
        found["model"] |= {n: value.to(found["model"][n]) for n, value in average.items()}
    memory = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return Weights(**found, averages=averages, memory=memory)
