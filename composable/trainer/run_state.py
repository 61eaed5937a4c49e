"""The state of a run as one mapping: captured for a checkpoint, and restored from it.

Resuming has two steps. The run is first rebuilt from code: the same arguments, the same surgery.
Then every value is restored. So nothing needs to know what an algorithm did to the state before.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.callback import Callback
from composable.core.state import State
from composable.functional._lent import divided_like, is_divided
from composable.optim.schedule_free import ScheduleFree
from composable.trainer.evaluated_weights import Weights, loss_module, same_bits, tensors_of
from composable.trainer.loaded_state import check_model
from composable.trainer.optimizer_state import (
    capture_optimizer,
    parameter_names,
    restore_optimizer,
)
from composable.trainer.run import Run

__all__ = [
    "best_weights",
    "capture",
    "capture_weights",
    "named_callbacks",
    "restore",
    "split_averages",
    "upgraded",
]


def capture(run: Run, state: State, callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Return everything that resuming needs, as plain containers and tensors.

    Args:
        run: The run.
        state: Its state.
        callbacks: The callbacks whose state is saved.
    """
    names = parameter_names(state.model, state.loss_module)
    evaluated, loss = run.weights.of(state), loss_module(state)
    return {
        **capture_weights(run, state),
        "loss_fn": _capture_model(loss, evaluated.loss_fn),
        "raw": {
            "model": _replaced(state.model, evaluated.model),
            "loss_fn": _replaced(loss, evaluated.loss_fn),
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
        check_model(module, saved[key], path, key)
        own, values = tensors_of(module), {**saved[key]["weights"], **saved[key]["buffers"]}
        found[key] = {name: divided_like(values[name], own[name]) for name in own}
    averages = {n: v for n, v in saved.get("averages", {}).items() if n in names}
    for average in averages.values() if old else ():
        found["model"] |= {n: value.to(found["model"][n]) for n, value in average.items()}
    memory = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return Weights(**found, averages=_divided(averages, state.model), memory=memory)


def upgraded(saved: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a state in the current format.

    Earlier versions kept averages in the memory, and did not record the first batch.

    Args:
        saved: What `capture` returned, now or in an earlier version, whose `model` had the weights
            that are trained.
        names: The algorithms that average weights.
    """
    if "data" in saved:
        saved = {**saved, "data": {"first_batch": None, **saved["data"]}}
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
    live |= _restore_model(loss_module(state), saved["loss_fn"], raw["loss_fn"])
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
