"""What a run is saved as, and how it is put back.

A run that goes on is built as it was at first: from the same arguments, with the same surgery.
Then every value in it is replaced by the saved one. So nothing needs to know what an algorithm
did to the state before: it is in the state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.state import State
from composable.data import get_generator_states, read_loader_state
from composable.trainer.loop import Loop

__all__ = ["by_name", "put_back", "take", "take_weights"]


_PARTS = {
    "model",
    "optimizers",
    "schedulers",
    "loss",
    "memory",
    "metrics",
    "timestamp",
    "previous_timestamp",
    "max_duration",
    "key",
    "loop",
    "callbacks",
}


def take(loop: Loop, state: State, callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Everything that a run must have to go on, as plain containers and tensors.

    Args:
        loop: The loop of the run.
        state: Where it stands.
        callbacks: Whose memory to keep.
    """
    return {
        **take_weights(state),
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in loop.rates.steppers],
        "loss": None if state.loss is None else state.loss.detach(),
        "memory": state.memory,
        "metrics": state.metrics,
        "previous_timestamp": state.previous_timestamp,
        "max_duration": state.max_duration,
        "loop": {
            "given_duration": loop.given_duration,
            "epoch_length": state.epoch_length,
            "fits": loop.fits,
            "fitting": loop.fitting,
            "requests": loop.dispatcher.requests.value,
            "evaluated_at": loop.evaluated_at,
            "rates_used": loop.rates_used,
            "watch": loop.watch.state_dict(),
            "loader": read_loader_state(loop.loader),
            "generators": loop.generators_of_the_epoch(),
            "size": loop.size if loop.finds_size else None,
        },
        "callbacks": {name: one.state_dict() for name, one in by_name(callbacks).items()},
    }


def take_weights(state: State) -> dict[str, Any]:
    """The model alone, and when it was."""
    return {"model": _take_model(state.model), "timestamp": state.timestamp, "key": state.key}


def _take_model(model: nn.Module) -> dict[str, Any]:
    weights = model.state_dict()
    buffers = {n: b for n, b in model.named_buffers() if n not in weights}  # not persistent
    return {
        "weights": dict(weights),
        "buffers": buffers,
        "without_gradients": [n for n, p in model.named_parameters() if not p.requires_grad],
        "in_evaluation": [name for name, module in model.named_modules() if not module.training],
    }


def by_name(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Callbacks by name; the second of a name is `name 2`."""
    named: dict[str, Callback] = {}
    count: Counter[str] = Counter()
    for callback in callbacks:
        count[callback.name] += 1
        number = count[callback.name]
        named[callback.name if number == 1 else f"{callback.name} {number}"] = callback
    return named


def put_back(loop: Loop, state: State, saved: Mapping[str, Any], path: str) -> State:
    """The state with every value replaced by the saved one.

    Everything is checked before anything is changed. The model, the optimizers and the schedulers
    are changed in place.

    Args:
        loop: The loop of a run that was built as the saved one was.
        state: Its state.
        saved: What `take` returned.
        path: Where it was read, for errors.

    Raises:
        MismatchError: The saved model or optimizers are others than these.
    """
    try:
        check(loop, state, saved, path)
        return _put_back(loop, state, saved)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DamagedCheckpointError(
            f"{path} can't be put back, for its state is not what a run saves: "
            f"{type(error).__name__}: {error}. What was built may have taken a part of it: build "
            "it again."
        ) from error


def check(loop: Loop, state: State, saved: Mapping[str, Any], path: str) -> None:
    """The saved run is this one, as far as can be told before anything is changed."""
    if missing := sorted(_PARTS - saved.keys()):
        raise MismatchError(
            f"{path} has no {', '.join(missing)}: they were left out when it was saved. Name them "
            "in load_ignore_keys= too, and they stay as they are."
        )
    check_model(state.model, saved["model"], path)
    check_optimizers(state.optimizers, saved["optimizers"], path)
    check_count("torch schedulers", loop.rates.steppers, saved["schedulers"], path)
    own, then = get_generator_states(loop.loader), saved["loop"]["generators"]
    check_count("generators of the loader", own, then, path)


def _put_back(loop: Loop, state: State, saved: Mapping[str, Any]) -> State:
    live = _put_back_model(state.model, saved["model"])
    for optimizer, values in zip(state.optimizers, saved["optimizers"], strict=True):
        _put_back_optimizer(optimizer, values)
    for scheduler, values in zip(loop.rates.steppers, saved["schedulers"], strict=True):
        scheduler.load_state_dict(values)

    rest = saved["loop"]
    loop.fits, loop.fitting = rest["fits"], rest["fitting"]
    loop.evaluated_at = dict(rest["evaluated_at"])
    loop.rates_used = dict(rest["rates_used"])
    loop.watch.load_state_dict(rest["watch"])
    loop.loader_state = rest["loader"]
    loop.generators = rest["generators"]
    if loop.finds_size:
        loop.size = rest["size"]
    loop.dispatcher.clear()
    loop.dispatcher.request(Control(rest["requests"]))
    unchanged = loop.given_duration == rest["given_duration"]
    loop.state = state.evolve(
        timestamp=saved["timestamp"],
        previous_timestamp=saved["previous_timestamp"],
        key=saved["key"],
        max_duration=saved["max_duration"] if unchanged else state.max_duration,
        loss=saved["loss"],
        memory=_replace(saved["memory"], live),
        metrics=saved["metrics"],
    )
    loop.saved_at = loop.done(loop.state)
    return loop.state


# --- the model ---


def check_model(model: nn.Module, saved: Mapping[str, Any], path: str) -> None:
    """The names and shapes of the saved model are those of the model."""
    own = {**model.state_dict(), **dict(model.named_buffers())}
    theirs = {**saved["weights"], **saved["buffers"]}
    faults = list(_differences(own, theirs))
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if faults[5:] else "")
        raise MismatchError(
            f"{path} is of another model: {shown}. Build the model and its algorithms as in the "
            "run that was saved; load_ignore_keys= leaves parts out, and load_weights_only=True "
            "takes no more than the weights."
        )


def _differences(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in own.keys() - theirs.keys():
        yield f"{name} is missing in the file"
    for name in theirs.keys() - own.keys():
        yield f"{name} is in the file, and the model has no such tensor"
    for name in own.keys() & theirs.keys():
        ours, saved = own[name], theirs[name]
        if not (isinstance(ours, Tensor) and isinstance(saved, Tensor)):
            continue
        if ours.shape != saved.shape:
            yield f"{name} has shape {tuple(saved.shape)} there and {tuple(ours.shape)} here"
        elif ours.dtype != saved.dtype:
            yield f"{name} has dtype {saved.dtype} there and {ours.dtype} here"


def _put_back_model(model: nn.Module, saved: Mapping[str, Any]) -> dict[int, Tensor]:
    """Copy the values into the model; its own tensors, by the identity of the saved ones."""
    model.load_state_dict(saved["weights"])
    buffers = dict(model.named_buffers())
    for name, buffer in saved["buffers"].items():
        with torch.no_grad():
            buffers[name].copy_(buffer)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in saved["without_gradients"])
    for name, module in model.named_modules():
        module.training = name not in saved["in_evaluation"]
    own = {**model.state_dict(keep_vars=True), **buffers}
    theirs = {**saved["weights"], **saved["buffers"]}
    return {id(theirs[name]): own[name] for name in theirs if isinstance(own[name], Tensor)}


def _replace(tree: Any, live: Mapping[int, Tensor]) -> Any:
    """A tree in which what was the model's is the model's again."""
    if isinstance(tree, Mapping):
        return {key: _replace(value, live) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_replace(value, live) for value in tree)
    return live.get(id(tree), tree) if isinstance(tree, Tensor) else tree


# --- optimizers ---


def check_optimizers(
    optimizers: Sequence[Optimizer], saved: Sequence[Mapping[str, Any]], path: str
) -> None:
    """As many optimizers, groups and parameters as were saved."""
    check_count("optimizers", optimizers, saved, path)
    for i, (optimizer, values) in enumerate(zip(optimizers, saved, strict=True)):
        ours = [len(group["params"]) for group in optimizer.param_groups]
        theirs = [len(group["params"]) for group in values["param_groups"]]
        if ours != theirs:
            raise MismatchError(
                f"{path} is of another run: optimizers[{i}] has groups of {theirs} parameters "
                f"there, and of {ours} here. Make the optimizers as in the run that was saved."
            )


def check_count(what: str, own: Sequence[Any], saved: Sequence[Any], path: str) -> None:
    """As many as were saved."""
    if len(own) != len(saved):
        raise MismatchError(
            f"{path} is of another run: it has {len(saved)} {what}, and this run has {len(own)}. "
            "Give the Trainer what the run that was saved had."
        )


def _put_back_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(dict(saved))
    # torch casts the state to the dtype of the parameter. It shall be what it was.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [i for group in saved["param_groups"] for i in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            loaded = optimizer.state[parameter][name]
            if isinstance(value, Tensor) and value.dtype != loaded.dtype:
                optimizer.state[parameter][name] = value.to(loaded.device)
