"""Checks of a loaded state against the run that was built, before anything is changed.

A checkpoint may be intact, and that of another run. So after its structure, the names, shapes and
counts of everything are compared, and each error names the path in the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.time import Timestamp
from composable.data.order import check_loader_state, get_generators, is_stateful
from composable.plan.compatibility import occurrences
from composable.trainer.arguments import check_countable, check_duration, check_iterations
from composable.trainer.evaluated_weights import loss_module, tensors_of
from composable.trainer.optimizer_state import alike, check_optimizer, parameter_names
from composable.trainer.run import Run
from composable.trainer.structure import ENGINE, check_structure, short, structure
from composable.trainer.training_data import TrainingData

__all__ = ["check", "check_model"]


def check(run: Run, saved: Mapping[str, Any], path: str) -> None:
    """Check every value of a state against a run, before anything is changed.

    Args:
        run: A run that was built like the saved one.
        saved: What `composable.trainer.run_state.capture` returned.
        path: Where it was read, for errors.

    Raises:
        MismatchError: The saved state is that of another run.
        DamagedCheckpointError: A value is not what a run saves.
    """
    if missing := sorted(structure().keys() - {ENGINE} - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}, which save_ignore_keys excluded; pass the same "
            "names in load_ignore_keys= to leave them unchanged."
        )
    check_structure(saved, path)
    state = run.state
    for key, module in (("model", state.model), ("loss_fn", loss_module(state))):
        check_model(module, saved[key], path, key)
        _check_values(module, saved["raw"][key], f"{path}: state/raw/{key}")
    for name, average in saved["averages"].items():
        _check_values(state.model, average, f"{path}: state/averages/{name}", every=True)
    best = saved["weights"]["best"]
    if best is not None:
        _check_values(state.model, best["model"], f"{path}: state/weights/best/model")
        _check_values(loss_module(state), best["loss_fn"], f"{path}: state/weights/best/loss_fn")
    _check_count("optimizers", state.optimizers, saved["optimizers"], f"{path}: state/optimizers")
    names = parameter_names(state.model, state.loss_module)
    for i, (optimizer, values) in enumerate(
        zip(state.optimizers, saved["optimizers"], strict=True)
    ):
        check_optimizer(optimizer, values, names, f"{path}: state/optimizers/{i}")
    schedulers, where = saved["rates"]["schedulers"], f"{path}: state/rates/schedulers"
    _check_count("torch schedulers", run.rates.steppers, schedulers, where)
    own, where = get_generators(run.data.loader), f"{path}: state/data/generators"
    _check_count("generators of the loader", own, saved["data"]["generators"], where)
    for name in ("timestamp", "previous_timestamp"):
        _check_timestamp(saved[name], f"{path}: state/{name}")
    for fault in _faults(run, saved):
        raise MismatchError(f"{path}: state/{fault} Build the Trainer as in the saved run.")
    _check_duration(run, saved, f"{path}: state/max_duration")


def _check_duration(run: Run, saved: Mapping[str, Any], name: str) -> None:
    """Check the duration that the run will have."""
    progress = saved["progress"]
    unchanged = run.progress.requested_duration == progress["requested_duration"]
    time = saved["max_duration"] if unchanged else run.state.max_duration
    if time is None and (progress["requested_duration"] is not None or progress["fit_in_progress"]):
        raise DamagedCheckpointError(f"{name} is None, and must be a duration.")
    try:
        if time is not None:
            check_duration(time)
        check_iterations(time, run.iteration_length, name)
        check_countable(name, time, run.data.count_tokens)
        run.state.evolve(max_duration=time)
    except ValueError as error:
        raise MismatchError(f"{name}: {error}") from None


_PARTS = (
    *((f"{unit}_in_epoch", unit) for unit in ("batch", "sample", "token")),
    *((f"{unit}_in_iteration", unit) for unit in ("epoch", "token")),
    *((f"{part}_wct", "total_wct") for part in ("iteration", "epoch", "batch")),
    ("token_in_epoch", "token_in_iteration"),
    ("epoch_wct", "iteration_wct"),
    ("epoch", "batch"),
)
"""Fields of a timestamp, each with one that it never exceeds."""


def _check_timestamp(now: Timestamp, where: str) -> None:
    """Check that no part of a timestamp exceeds the whole."""
    for part, whole in _PARTS:
        if getattr(now, part) > getattr(now, whole):
            raise DamagedCheckpointError(
                f"{where} has {getattr(now, part)} as {part}, more than {getattr(now, whole)} as "
                f"{whole}."
            )


def _faults(run: Run, saved: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts the run, with the path."""
    yield from _module_faults(run.state.model, saved["model"], "model")
    for i, (own, state) in enumerate(
        zip(run.rates.steppers, saved["rates"]["schedulers"], strict=True)
    ):
        yield from _scheduler_faults(own, state, f"rates/schedulers/{i}")
    for i, (generator, state) in enumerate(
        zip(get_generators(run.data.loader), saved["data"]["generators"], strict=True)
    ):
        try:
            torch.Generator(generator.device).set_state(state.cpu())
        except (RuntimeError, TypeError) as error:
            yield f"data/generators/{i} is not the state of a generator: {error}."
    if saved["timestamp"].batch_in_epoch:
        yield from _position_faults(run.data, saved["data"])
    yield from _memory_faults(run, saved["memory"])


def _position_faults(data: TrainingData, saved: Mapping[str, Any]) -> Iterator[str]:
    count, own = saved["batches_per_step"], data.batches_per_step
    if count != own:
        yield (
            f"data/batches_per_step is {count}, and this run, which resumes within an epoch, has "
            f"accumulate_batches={own}; change it at the end of an epoch."
        )
    state, loader = saved["loader"], data.loader
    if state is None:
        return
    if not is_stateful(loader):
        yield (
            "data/loader is the state of a loader, and the train_dataloader of this run has no "
            "state_dict."
        )
        return
    try:
        check_loader_state(loader, state)
    except ValueError as error:
        yield f"data/loader does not fit the train_dataloader: {error}"


def _module_faults(model: nn.Module, saved: Mapping[str, Any], where: str) -> Iterator[str]:
    names = {
        "without_gradients": {name for name, _ in model.named_parameters()},
        "in_evaluation": {name for name, _ in model.named_modules()},
    }
    for field, known in names.items():
        if unknown := sorted(set(saved[field]) - known):
            yield f"{where}/{field} has {unknown[0][:80]!r}, which this model does not have."


def _scheduler_faults(own: Any, saved: Mapping[str, Any], where: str) -> Iterator[str]:
    state = own.state_dict()
    if differing := sorted(map(str, state.keys() ^ saved.keys())):
        yield f"{where} and this run's {type(own).__name__} differ in the entries {differing[:5]}."
    for name in state.keys() & saved.keys():
        if not alike(state[name], saved[name]):
            wanted = short(state[name])
            yield f"{where}/{name} is {short(saved[name])}, and must be like {wanted}."


def _memory_faults(run: Run, memory: Mapping[str, Any]) -> Iterator[str]:
    for algorithm in run.dispatcher.plan.algorithms:
        for occurrence in occurrences(algorithm):
            one = occurrence.algorithm
            if one.name not in memory:
                continue
            try:
                one.check_memory(memory[one.name], run.state)
            except ValueError as error:
                yield f"memory/{one.name} is not a memory of {type(one).__name__}: {error}"


def check_model(model: nn.Module, saved: Mapping[str, Any], path: str, what: str = "model") -> None:
    """Check that the saved names, shapes and dtypes are those of the model or the loss."""
    own = {**model.state_dict(), **dict(model.named_buffers())}
    theirs = {**saved["weights"], **saved["buffers"]}
    differences = list(_differences(own, theirs, what))
    if differences:
        more = f"; and {len(differences) - 5} more" if differences[5:] else ""
        shown = "; ".join(differences[:5]) + more
        raise MismatchError(
            f"{path} was saved from another {what}: {shown}. Build the {what} and its algorithms "
            "as in the saved run; load_ignore_keys= skips entries, and load_weights_only=True "
            "loads the weights alone."
        )


def _check_values(
    module: nn.Module, saved: Mapping[str, Any], where: str, *, every: bool = False
) -> None:
    """Check that saved tensors are values of tensors of a module, or of all of them."""
    own = tensors_of(module)
    for name, value in saved.items():
        if name not in own or not isinstance(value, Tensor) or value.shape != own[name].shape:
            wanted = f"a tensor of shape {list(own[name].shape)}" if name in own else "absent"
            raise MismatchError(f"{where}/{name[:80]} must be {wanted}, as in this model.")
    if every and (missing := sorted(own.keys() - saved.keys())):
        raise MismatchError(f"{where} has no {missing[0]}, which this model has.")


def _differences(own: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> Iterator[str]:
    for name in own.keys() - theirs.keys():
        yield f"{name} is missing in the file"
    for name in theirs.keys() - own.keys():
        yield f"{name} is in the file, and the {what} has no such tensor"
    for name in own.keys() & theirs.keys():
        ours, saved = own[name], theirs[name]
        if isinstance(ours, Tensor) is not isinstance(saved, Tensor):
            yield f"{name} is a {type(saved).__name__} there and a {type(ours).__name__} here"
        if not (isinstance(ours, Tensor) and isinstance(saved, Tensor)):
            continue
        if ours.shape != saved.shape:
            yield f"{name} has shape {tuple(saved.shape)} there and {tuple(ours.shape)} here"
        elif ours.dtype != saved.dtype:
            yield f"{name} has dtype {saved.dtype} there and {ours.dtype} here"


def _check_count(what: str, own: Sequence[Any], saved: Sequence[Any], where: str) -> None:
    """Check that there are as many as were saved."""
    if len(own) != len(saved):
        raise MismatchError(
            f"{where} was saved from another run: it has {len(saved)} {what}, and this run has "
            f"{len(own)}. Build the Trainer as in the saved run."
        )
