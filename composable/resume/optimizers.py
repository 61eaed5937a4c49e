"""The states of optimizers in a checkpoint: saved and restored by parameter name."""

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict

from composable._support.printable import shorten
from composable.checkpoint.errors import MismatchError
from composable.core.stateful import Kind, is_count


def _is_group(value: Any) -> bool:
    numbers = value.get("params") if isinstance(value, Mapping) else None
    return isinstance(numbers, list) and all(map(is_count, numbers))


Group = Annotated[Mapping[str, Any], Kind("a group with a list of numbers as params", _is_group)]


class OptimizerState(TypedDict):
    """The state dict of an optimizer, with its type and the names of its parameters."""

    type: str
    parameters: list[list[str]]
    state: Mapping[Any, Any]
    param_groups: list[Group]


Names = Mapping[int, str]
"""The names of parameters, by `id`."""


def parameter_names(model: nn.Module, loss: nn.Module | None = None) -> dict[int, str]:
    """Return the names of the parameters of a model and of a loss, by `id`."""
    named = {} if loss is None else dict(loss.named_parameters(prefix="loss_fn"))
    return {
        id(parameter): name for name, parameter in (named | dict(model.named_parameters())).items()
    }


def capture_optimizer(optimizer: Optimizer, names: Names) -> OptimizerState:
    """Return the state of an optimizer, with its type and the names of its parameters."""
    described = {"type": _type_of(optimizer), "parameters": _names_of(optimizer, names)}
    return {**described, **optimizer.state_dict()}  # type: ignore[typeddict-item]


def _type_of(optimizer: Optimizer) -> str:
    """Return the names of the class and of the wrappers of `composable.optim`."""
    parts = (optimizer, *getattr(optimizer, "optimizers", ()))  # a `MultiOptimizer` has these
    hooks = [hook for part in parts for hook in part._optimizer_step_pre_hooks.values()]
    wrappers = [type(getattr(hook, "__self__", None)) for hook in hooks]
    kinds = [one.__name__ for one in wrappers if one.__module__.startswith("composable.optim.")]
    return type(optimizer).__name__ + (f" with {', '.join(kinds)}" if kinds else "")


def _names_of(optimizer: Optimizer, names: Names) -> list[list[str]]:
    return [
        [names.get(id(p), f"{i}/{j}, not in the model") for j, p in enumerate(group["params"])]
        for i, group in enumerate(optimizer.param_groups)
    ]


def restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], names: Names) -> None:
    """Load a saved state, which gives each parameter the values of its name.

    The hyperparameters are loaded too.

    Args:
        optimizer: The optimizer of the run.
        saved: What `capture_optimizer` returned.
        names: The names of the parameters, by `id`.

    Raises:
        MismatchError: The saved state belongs to another optimizer, or to other parameters.
    """
    _check_type(optimizer, saved)
    _check_groups(optimizer, saved)
    _check_names(_names_of(optimizer, names), saved["parameters"])
    adopted = _adopt(optimizer, saved, names)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.load_state_dict(adopted)
    # torch casts the state to the dtype of the parameter; restore its own dtype.
    for number, values in adopted["state"].items():
        for name, value in values.items():
            loaded = optimizer.state[parameters[number]][name]
            if isinstance(value, Tensor) and value.dtype != loaded.dtype:
                optimizer.state[parameters[number]][name] = value.to(loaded.device)


def _adopt(optimizer: Optimizer, saved: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return a saved state with the numbers that the optimizer gives to the parameters."""
    own = optimizer.state_dict()["param_groups"]
    numbers, groups = {}, []
    for ours, theirs, group, saved_group in zip(
        _names_of(optimizer, names), saved["parameters"], own, saved["param_groups"], strict=True
    ):
        number_of = dict(zip(ours, group["params"], strict=True))
        numbers.update(
            {n: number_of[name] for name, n in zip(theirs, saved_group["params"], strict=True)}
        )
        groups.append({**group, **saved_group, "params": group["params"]})
        if "param_names" in group:
            groups[-1]["param_names"] = group["param_names"]
    state = {numbers[number]: values for number, values in saved["state"].items()}
    return {"state": dict(sorted(state.items())), "param_groups": groups}


# --- checks ---


def _check_type(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    if saved["type"] != (own := _type_of(optimizer)):
        raise MismatchError(
            f"type is {shorten(saved['type'])}, and the optimizer of this run is {own}: "
            "use the optimizer of the saved run, or start with a new optimizer: "
            "load_ignore_keys=['optimizers', 'rates']."
        )


def _check_groups(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Check the numbers of groups and parameters."""
    ours = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in saved["param_groups"]]
    if ours != theirs:
        raise MismatchError(
            f"param_groups was saved from another run: it has groups of {theirs} parameters there, "
            f"and of {ours} here. Build the optimizers as in the saved run."
        )


def _check_names(ours: list[list[str]], theirs: Any) -> None:
    """Check that each group has the parameters that it had, in any order."""
    for i, own in enumerate(ours):
        saved = theirs[i]
        if sorted(own) != sorted(saved):
            only = sorted(set(saved) - set(own))[:3], sorted(set(own) - set(saved))[:3]
            raise MismatchError(
                f"parameters/{i} has other parameters than the group {i} of this run: "
                f"{only[0]} there, and {only[1]} here. Build the optimizers as in the saved run."
            )
