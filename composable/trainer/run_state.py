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
from composable.trainer.loaded_state import check_run_state, check_structure
from composable.trainer.optimizer_state import (
    capture_optimizer,
    check_optimizer,
    parameter_names,
    restore_optimizer,
)
from composable.trainer.parameters import averaged_weights
from composable.trainer.run import Run

__all__ = [
    "ENGINE",
    "SCHEMA",
    "capture",
    "capture_weights",
    "check",
    "named_callbacks",
    "restore",
    "restore_weights",
]

SCHEMA: dict[str, type | tuple[type, ...]] = {
    "model": dict,
    "timestamp": Timestamp,
    "key": Key,
    "loss_fn": dict,
    "optimizers": list,
    "loss": (Tensor, NoneType),
    "memory": dict,
    "metrics": dict,
    "previous_timestamp": Timestamp,
    "max_duration": (Time, NoneType),
    "rates": dict,
    "data": dict,
    "evaluation": dict,
    "guard": dict,
    "loss_scaler": dict,
    "microbatches": dict,
    "progress": dict,
    "requests": dict,
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
    return {
        **_capture_training_weights(state),
        "loss_fn": _capture_model(_loss_module(state)),
        "optimizers": [capture_optimizer(one, names) for one in state.optimizers],
        "loss": None if state.loss is None else state.loss.detach(),
        "memory": state.memory,
        "metrics": state.metrics,
        "previous_timestamp": state.previous_timestamp,
        "max_duration": state.max_duration,
        **{name: part.state_dict() for name, part in run.parts.items()},
        "callbacks": {name: one.state_dict() for name, one in named_callbacks(callbacks).items()},
    }


def capture_weights(state: State) -> dict[str, Any]:
    """Return the model alone, with its timestamp and key, to use it for inference.

    The weights are the averages of schedule-free optimizers.
    """
    captured = _capture_training_weights(state)
    captured["model"]["weights"] |= averaged_weights(state.model, state.optimizers, all_names=True)
    return captured


def _capture_training_weights(state: State) -> dict[str, Any]:
    return {"model": _capture_model(state.model), "timestamp": state.timestamp, "key": state.key}


def _loss_module(state: State) -> nn.Module:
    """Return the module that computes the loss, or one without tensors."""
    return nn.Module() if state.loss_module is None else state.loss_module


def _capture_model(model: nn.Module) -> dict[str, Any]:
    weights = model.state_dict()
    buffers = {n: b for n, b in model.named_buffers() if n not in weights}  # not persistent
    return {
        "weights": dict(weights),
        "buffers": buffers,
        "without_gradients": [n for n, p in model.named_parameters() if not p.requires_grad],
        "in_evaluation": [name for name, module in model.named_modules() if not module.training],
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
    _check_model(state.model, saved["model"], path)
    _check_model(_loss_module(state), saved["loss_fn"], path, "loss_fn")
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


def restore_weights(
    state: State, saved: Mapping[str, Any], names: Iterable[str], path: str
) -> State:
    """Restore the weights of the model and the loss, and the memory of some algorithms.

    Args:
        state: The state; its model is changed in place.
        saved: What `capture` or `capture_weights` returned.
        names: The algorithms whose memory becomes that of the checkpoint.
        path: Where it was read, for errors.

    Raises:
        MismatchError: It has no weights of this model, or no memory for the algorithms.
    """
    names = set(names)
    needed = {"model"} | ({"memory"} if names else set())
    if state.loss_module is not None:
        needed.add("loss_fn")
    if missing := sorted(needed - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}, on which evaluations depend; do not exclude it "
            "with save_weights_only or save_ignore_keys."
        )
    pairs = {"model": state.model}
    if state.loss_module is not None:
        pairs["loss_fn"] = state.loss_module
    live: dict[int, Tensor] = {}
    for key, module in pairs.items():
        _check_model(module, saved[key], path, "model" if key == "model" else "loss_fn")
        live |= _restore_tensors(module, saved[key])
    memory = {name: value for name, value in state.memory.items() if name not in names}
    kept = {n: v for n, v in saved.get("memory", {}).items() if n in names}
    return state.evolve(memory={**memory, **_relink(kept, live)})


def _restore(run: Run, saved: Mapping[str, Any]) -> None:
    state = run.state
    live = _restore_model(state.model, saved["model"])
    live |= _restore_model(_loss_module(state), saved["loss_fn"])
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


def _restore_model(model: nn.Module, saved: Mapping[str, Any]) -> dict[int, Tensor]:
    """Copy the values into the model, and map the ids of saved tensors to the model's own."""
    live = _restore_tensors(model, saved)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in saved["without_gradients"])
    for name, module in model.named_modules():
        module.training = name not in saved["in_evaluation"]
    return live


def _restore_tensors(model: nn.Module, saved: Mapping[str, Any]) -> dict[int, Tensor]:
    own = model.state_dict()
    model.load_state_dict({n: divided_like(t, own.get(n)) for n, t in saved["weights"].items()})
    buffers = dict(model.named_buffers())
    for name, buffer in saved["buffers"].items():
        with torch.no_grad():
            buffers[name].copy_(buffer)
    own = {**model.state_dict(keep_vars=True), **buffers}
    theirs = {**saved["weights"], **saved["buffers"]}
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
