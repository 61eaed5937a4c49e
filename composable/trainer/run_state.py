"""The state of a run as one mapping: captured for a checkpoint, and restored from it.

Resuming has two steps. The run is first rebuilt from code: the same arguments, the same surgery.
Then every value is restored. So nothing needs to know what an algorithm did to the state before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.callback import Callback
from composable.core.key import Key
from composable.core.state import State
from composable.core.time import Time, Timestamp
from composable.data.order import get_generators
from composable.functional._lent import divided_like, is_divided
from composable.optim.schedule_free import ScheduleFree
from composable.trainer.evaluated_weights import Weights, same_bits, tensors_of
from composable.trainer.loaded_state import check_run_state, check_structure
from composable.trainer.optimizer_state import (
    capture_optimizer,
    check_optimizer,
    parameter_names,
    restore_optimizer,
)
from composable.trainer.run import Run

__all__ = [
    "ENGINE",
    "SCHEMA",
    "best_weights",
    "capture",
    "capture_weights",
    "check",
    "named_callbacks",
    "restore",
    "split_averages",
    "upgraded",
]

SCHEMA: dict[str, type | tuple[type, ...]] = {
    "model": dict,
    "raw": dict,
    "timestamp": Timestamp,
    "key": Key,
    "loss_fn": dict,
    "optimizers": list,
    "loss": (Tensor, NoneType),
    "memory": dict,
    "averages": dict,
    "metrics": dict,
    "previous_timestamp": Timestamp,
    "max_duration": (Time, NoneType),
    "rates": dict,
    "data": dict,
    "evaluation": dict,
    "guard": dict,
    "loss_scaler": dict,
    "loss_shares": dict,
    "microbatches": dict,
    "progress": dict,
    "requests": dict,
    "weights": dict,
    "callbacks": dict,
}
"""What a complete checkpoint has, and of which type: fields of the state, and parts of the run."""

ENGINE = "engine"
"""What a complete checkpoint has in addition if DeepSpeed computed the steps."""


def capture(run: Run, state: State, callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Return everything that resuming needs, as plain containers and tensors.

    Args:
        run: The run.
        state: Its state.
        callbacks: The callbacks whose state is saved.
    """
    names = parameter_names(state.model, state.loss_module)
    evaluated, loss_module = run.weights.of(state), _loss_module(state)
    return {
        **capture_weights(run, state),
        "loss_fn": _capture_model(loss_module, evaluated.loss_fn),
        "raw": {
            "model": _replaced(state.model, evaluated.model),
            "loss_fn": _replaced(loss_module, evaluated.loss_fn),
        },
        "optimizers": [capture_optimizer(one, names) for one in state.optimizers],
        "loss": None if state.loss is None else state.loss.detach(),
        "memory": state.memory,
        "averages": state.averages,
        "metrics": state.metrics,
        "previous_timestamp": state.previous_timestamp,
        "max_duration": state.max_duration,
        **{name: part.state_dict() for name, part in run.parts.items()},
        "callbacks": {name: one.state_dict() for name, one in named_callbacks(callbacks).items()},
    }


def capture_weights(run: Run, state: State) -> dict[str, Any]:
    """Return the model alone, with its timestamp and key, to use it for inference.

    Its weights are those with which the run is evaluated.
    """
    return {
        "model": _capture_model(state.model, run.weights.of(state).model),
        "timestamp": state.timestamp,
        "key": state.key,
    }


def _loss_module(state: State) -> nn.Module:
    """Return the module that computes the loss, or one without tensors."""
    return nn.Module() if state.loss_module is None else state.loss_module


def _capture_model(model: nn.Module, evaluated: Mapping[str, Tensor]) -> dict[str, Any]:
    own = tensors_of(model)
    new = {id(own[name]): tensor for name, tensor in evaluated.items()}  # a tensor may have names
    weights = {n: new.get(id(one), one) for n, one in model.state_dict(keep_vars=True).items()}
    named = {n: b for n, b in model.named_buffers() if n not in weights}  # not persistent
    return {
        "weights": {n: t.detach() if isinstance(t, Tensor) else t for n, t in weights.items()},
        "buffers": {name: new.get(id(buffer), buffer) for name, buffer in named.items()},
        "without_gradients": [n for n, p in model.named_parameters() if not p.requires_grad],
        "in_evaluation": [name for name, module in model.named_modules() if not module.training],
    }


def _replaced(model: nn.Module, evaluated: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values that are trained, for the tensors that are evaluated with others."""
    own = tensors_of(model)
    return {
        name: own[name].detach()
        for name, value in evaluated.items()
        # The processes of a divided model must agree on the names.
        if is_divided(model) or not same_bits(own[name].detach(), value.to(own[name].device))
    }


def named_callbacks(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by name; the second of a name is `name 2`."""
    named: dict[str, Callback] = {}
    count: Counter[str] = Counter()
    for callback in callbacks:
        count[callback.name] += 1
        number = count[callback.name]
        named[callback.name if number == 1 else f"{callback.name} {number}"] = callback
    return named


def check(run: Run, saved: Mapping[str, Any], path: str) -> None:
    """Check every value of a state against a run, before anything is changed.

    Args:
        run: A run that was built like the saved one.
        saved: What `capture` returned.
        path: Where it was read, for errors.

    Raises:
        MismatchError: The saved state is that of another run.
        DamagedCheckpointError: A value is not what a run saves.
    """
    if missing := sorted(SCHEMA.keys() - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}, which save_ignore_keys excluded; pass the same "
            "names in load_ignore_keys= to leave them unchanged."
        )
    check_structure(saved, path)
    state = run.state
    for key, module in (("model", state.model), ("loss_fn", _loss_module(state))):
        _check_model(module, saved[key], path, key)
        _check_values(module, saved["raw"][key], f"{path}: state/raw/{key}")
    for name, average in saved["averages"].items():
        _check_values(state.model, average, f"{path}: state/averages/{name}", every=True)
    best = saved["weights"]["best"]
    if best is not None:
        _check_values(state.model, best["model"], f"{path}: state/weights/best/model")
        _check_values(_loss_module(state), best["loss_fn"], f"{path}: state/weights/best/loss_fn")
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
    check_run_state(run, saved, path)


def restore(run: Run, saved: Mapping[str, Any], path: str) -> None:
    """Restore every value of a run, after `check`.

    Args:
        run: The run. Its model, optimizers and schedulers are changed in place.
        saved: What `capture` returned.
        path: Where it was read, for errors.

    Raises:
        DamagedCheckpointError: A value is not what a run saves.
    """
    try:
        _restore(run, saved)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DamagedCheckpointError(
            f"{path} cannot be restored, because its state is not what a run saves: "
            f"{type(error).__name__}: {error}. The run may be partly restored: build it again."
        ) from error


def best_weights(state: State, saved: Mapping[str, Any], names: set[str], path: str) -> Weights:
    """Return the weights with which a saved run was evaluated.

    Args:
        state: The state of a run with the same model.
        saved: What `capture` or `capture_weights` returned.
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
        _check_model(module, saved[key], path, key)
        own, values = tensors_of(module), {**saved[key]["weights"], **saved[key]["buffers"]}
        found[key] = {name: divided_like(values[name], own[name]) for name in own}
    averages = {n: v for n, v in saved.get("averages", {}).items() if n in names}
    for average in averages.values() if old else ():
        found["model"] |= {n: value.to(found["model"][n]) for n, value in average.items()}
    memory = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return Weights(**found, averages=_divided(averages, state.model), memory=memory)


def upgraded(saved: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a state in the current format; earlier versions kept averages in the memory.

    Args:
        saved: What `capture` returned, now or in an earlier version, whose `model` had the weights
            that are trained.
        names: The algorithms that average weights.
    """
    if not is_old(saved):
        return dict(saved)
    new: dict[str, Any] = {
        "averages": {},
        "raw": {"model": {}, "loss_fn": {}},
        "weights": {"best": None},
        "loss_shares": {"unit": None},
    }
    return {**saved, **new, **(split_averages(saved["memory"], names) if "memory" in saved else {})}


def split_averages(memory: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the memory and the averages of a state whose memory has both."""
    rest, averages = dict(memory), {}
    for name in names & rest.keys():
        if isinstance(rest[name], Mapping) and "average" in rest[name]:
            kept = dict(rest.pop(name))
            averages[name] = kept.pop("average")
            rest |= {name: kept} if kept else {}
    return {"memory": rest, "averages": averages}


def is_old(saved: Mapping[str, Any]) -> bool:
    """Return whether an earlier version wrote a state: its model has the training weights."""
    return not {"averages", "raw", "weights"} & saved.keys()


def _restore(run: Run, saved: Mapping[str, Any]) -> None:
    state = run.state
    raw = saved["raw"]
    live = _restore_model(state.model, saved["model"], raw["model"])
    live |= _restore_model(_loss_module(state), saved["loss_fn"], raw["loss_fn"])
    names = parameter_names(state.model, state.loss_module)
    for optimizer, values in zip(state.optimizers, saved["optimizers"], strict=True):
        restore_optimizer(optimizer, values, names)
    for name, part in run.parts.items():
        part.load_state_dict(saved[name])
    unchanged = run.progress.requested_duration == saved["progress"]["requested_duration"]
    run.state = state.evolve(
        timestamp=saved["timestamp"],
        previous_timestamp=saved["previous_timestamp"],
        key=saved["key"],
        max_duration=saved["max_duration"] if unchanged else state.max_duration,
        loss=saved["loss"],
        memory=_relink(_divided(saved["memory"], state.model), live),
        averages=_divided(saved["averages"], state.model),
        metrics=saved["metrics"],
    )
    run.checkpoints.mark_saved(run, run.state)


# --- the model ---


def _check_model(
    model: nn.Module, saved: Mapping[str, Any], path: str, what: str = "model"
) -> None:
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


def _restore_model(
    model: nn.Module, saved: Mapping[str, Any], raw: Mapping[str, Tensor]
) -> dict[int, Tensor]:
    """Copy the values into the model, and map the ids of saved tensors to the model's own.

    Args:
        model: The model, changed in place.
        saved: What `_capture_model` returned.
        raw: The values that are trained, where the model is evaluated with others.
    """
    own = model.state_dict()
    model.load_state_dict({n: divided_like(t, own.get(n)) for n, t in saved["weights"].items()})
    tensors = tensors_of(model)
    values = {n: b for n, b in saved["buffers"].items() if n not in raw} | dict(raw)
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(divided_like(value, tensors[name]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in saved["without_gradients"])
    for name, module in model.named_modules():
        module.training = name not in saved["in_evaluation"]
    own = {**model.state_dict(keep_vars=True), **dict(model.named_buffers())}
    theirs = {**saved["weights"], **saved["buffers"], **raw}
    return {id(theirs[name]): own[name] for name in theirs if isinstance(own[name], Tensor)}


def _divided(tree: Any, model: nn.Module) -> Any:
    """Divide the tensors of a tree that belong to a parameter as the parameter is divided.

    Those under the name of the parameter with its shape do, such as its average.
    """
    if not is_divided(model):
        return tree
    own = dict(model.named_parameters())

    def visit(node: Any, name: str) -> Any:
        if isinstance(node, Mapping):
            return {key: visit(value, str(key)) for key, value in node.items()}
        return divided_like(node, own.get(name)) if isinstance(node, Tensor) else node

    return visit(tree, "")


def _relink(tree: Any, live: Mapping[int, Tensor]) -> Any:
    """Replace the saved tensors of the model in a tree by the model's own."""
    if isinstance(tree, Mapping):
        return {key: _relink(value, live) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_relink(value, live) for value in tree)
    return live.get(id(tree), tree) if isinstance(tree, Tensor) else tree


def _check_count(what: str, own: Sequence[Any], saved: Sequence[Any], where: str) -> None:
    """Check that there are as many as were saved."""
    if len(own) != len(saved):
        raise MismatchError(
            f"{where} was saved from another run: it has {len(saved)} {what}, and this run has "
            f"{len(own)}. Build the Trainer as in the saved run."
        )
