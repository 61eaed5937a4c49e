"""The states of optimizers in a checkpoint: saved, checked and restored by parameter name."""

import copy
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict

from composable._support.dtensors import whole_like
from composable._support.printable import shorten
from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.stateful import Kind, is_count, short
from composable.resume.changes import alike, expect

__all__ = [
    "OptimizerState",
    "capture_optimizer",
    "check_saved_optimizer",
    "parameter_names",
    "restore_optimizer",
]


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

PRE_HOOKS, POST_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_IMPLEMENTATION = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
"""The implementation of a step that works on every device, the meta device included."""


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
    """Return the name of the class, and those of the wrappers of `composable.optim`."""
    hooks = [hook for one in _with_parts(optimizer) for hook in _wrapping(one, PRE_HOOKS).values()]
    kinds = [type(hook.__self__).__name__ for hook in hooks]
    return type(optimizer).__name__ + (f" with {', '.join(kinds)}" if kinds else "")


def _with_parts(optimizer: Any) -> tuple[Any, ...]:
    """Return an optimizer, and those of a `MultiOptimizer`."""
    return (optimizer, *getattr(optimizer, "optimizers", ()))


def _wrapping(optimizer: Optimizer, hooks: str) -> "OrderedDict[int, Any]":
    """Return the hooks of a step that belong to wrappers of `composable.optim`."""
    own = getattr(optimizer, hooks).items()
    return OrderedDict((n, hook) for n, hook in own if _is_ours(type(getattr(hook, "__self__", 0))))


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("composable.optim.")


def _names_of(optimizer: Optimizer, names: Names) -> list[list[str]]:
    return [
        [names.get(id(p), f"{i}/{j}, not in the model") for j, p in enumerate(group["params"])]
        for i, group in enumerate(optimizer.param_groups)
    ]


def check_saved_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], names: Names, where: str
) -> None:
    """Check that a saved state is one of this optimizer, without changing anything.

    The types, the names of the parameters, and the hyperparameters are compared. Then a step is
    computed on tensors without data, and its state compared with the saved one. An optimizer that
    cannot step so (`torch.optim.LBFGS` takes a closure), or that PyTorch does not define, is
    compared by its hyperparameters alone.

    Args:
        optimizer: The optimizer of the run.
        saved: What `capture_optimizer` returned.
        names: The names of the parameters, by `id`.
        where: The file and the path in it, for errors.

    Raises:
        MismatchError: The saved state is that of another optimizer, or damaged.
        DamagedCheckpointError: Its names are not those of its parameters.
    """
    named = [len(names) for names in saved["parameters"]]
    numbered = [len(group["params"]) for group in saved["param_groups"]]
    if named != numbered:
        raise DamagedCheckpointError(
            f"{where}/parameters names {named} parameters, and the groups have {numbered}."
        )
    if saved["type"] != (own := _type_of(optimizer)):
        raise MismatchError(
            f"{where}/type is {shorten(saved['type'])}, and the optimizer of this run is {own}: "
            "use the optimizer of the saved run, or start with a new optimizer: "
            "load_ignore_keys=['optimizers', 'rates']."
        )
    _check_groups(optimizer, saved, where)
    _check_names(_names_of(optimizer, names), saved["parameters"], where)
    adopted = _adopt(optimizer, saved, names)
    for number, values in adopted["state"].items():
        expect(isinstance(values, Mapping), f"{where}/state/{number}", values, "a dictionary")
    first = _rehearse(optimizer, adopted["param_groups"], {})
    if first is None:
        return
    flat = [name for group in _names_of(optimizer, names) for name in group]
    for number, values in adopted["state"].items():
        _check_values(values, first.get(number, {}), f"{where}/state/{number} ({flat[number]})")
    if _rehearse(optimizer, adopted["param_groups"], adopted["state"]) is None:
        raise MismatchError(f"{where} has hyperparameters or counts with which it cannot step.")


def restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], names: Names) -> None:
    """Load a state that was checked; the hyperparameters are those of the checkpoint."""
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


def _check_groups(optimizer: Optimizer, saved: Mapping[str, Any], where: str) -> None:
    """Check the numbers of groups and parameters, and the types of the hyperparameters."""
    groups = saved["param_groups"]
    ours = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in groups]
    if ours != theirs:
        raise MismatchError(
            f"{where} was saved from another run: it has groups of {theirs} parameters there, and "
            f"of {ours} here. Build the optimizers as in the saved run."
        )
    numbers = [number for group in groups for number in group["params"]]
    unique = len({(type(number), number) for number in numbers}) == len(numbers)
    expect(unique and all(type(n) is int for n in numbers), f"{where}/param_groups", numbers,
            "lists of distinct numbers of parameters")  # fmt: skip
    unknown = [number for number in saved["state"] if number not in numbers]
    expect(not unknown, f"{where}/state", unknown, "empty for parameters of no group")
    for i, (own, group) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        for name in own.keys() & group.keys() - {"params", "param_names"}:
            expect(
                alike(own[name], group[name]),
                f"{where}/param_groups/{i}/{name}",
                group[name],
                f"of the type of {short(own[name])}",
            )


def _check_names(ours: list[list[str]], theirs: Any, where: str) -> None:
    """Check that each group has the parameters that it had, in any order."""
    for i, own in enumerate(ours):
        saved = theirs[i]
        if sorted(own) != sorted(saved):
            only = sorted(set(saved) - set(own))[:3], sorted(set(own) - set(saved))[:3]
            raise MismatchError(
                f"{where}/parameters/{i} has other parameters than the group {i} of this run: "
                f"{only[0]} there, and {only[1]} here. Build the optimizers as in the saved run."
            )


def _check_values(saved: Mapping[str, Any], first: Mapping[str, Any], where: str) -> None:
    """Compare the state of a parameter with that of a first step."""
    if saved.keys() != first.keys():
        raise MismatchError(
            f"{where} has the entries {sorted(map(str, saved))[:8]}, and this optimizer has "
            f"{sorted(map(str, first))[:8]}."
        )
    for name, own in first.items():
        value = saved[name]
        if isinstance(own, Tensor) and isinstance(value, Tensor):
            fits = own.shape == value.shape and own.dtype == value.dtype
            kind = f"{tuple(value.shape)} of {value.dtype}"
            wanted = f"{tuple(own.shape)} of {own.dtype}"
            if not fits:
                raise MismatchError(f"{where}/{name} has shape {kind}, and must have {wanted}.")
        else:
            expect(alike(own, value), f"{where}/{name}", value, f"of the type of {short(own)}")


# --- a step without data ---


def _rehearse(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], state: Mapping[int, Any]
) -> dict[int, dict[str, Any]] | None:
    """Return the state after a step on the meta device, by number; None if there is none.

    Only for optimizers of PyTorch and of this library. The step of any other may have effects
    elsewhere, and its state may get further entries after the first step.
    """
    if not all(
        _is_ours(type(one)) or type(one).__module__.startswith("torch.optim.")
        for one in _with_parts(optimizer)
    ):
        return None
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if not state and all(optimizer.state.get(p) for p in own):
        return {number: optimizer.state[p] for number, p in enumerate(own)}
    twins = [whole_like(p, device="meta").requires_grad_() for p in own]
    for twin in twins:
        twin.grad = torch.empty_like(twin)
    numbers = dict(enumerate(twins))
    twin_of: Any = copy.copy(optimizer)
    twin_of.param_groups = [
        {
            **{name: _own(value) for name, value in group.items()},
            **{name: value for name, value in _IMPLEMENTATION.items() if name in group},
            "params": [numbers[number] for number in group["params"]],
        }
        for group in groups
    ]
    twin_of.state = defaultdict(dict, {numbers[n]: _on_meta(one) for n, one in state.items()})
    for one, twin in zip(_with_parts(optimizer), _with_parts(twin_of), strict=True):
        for hooks in (PRE_HOOKS, POST_HOOKS):
            setattr(twin, hooks, _wrapping(one, hooks))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            type(optimizer).step(twin_of)
    except Exception:  # a damaged value may raise anything; some need a closure, or data
        return None
    return {number: dict(twin_of.state.get(twin, {})) for number, twin in numbers.items()}


def _on_meta(values: Mapping[str, Any]) -> dict[str, Any]:
    """Move all tensors but single numbers, such as the count of steps, to the meta device."""
    return {
        name: whole_like(value, "meta") if isinstance(value, Tensor) and value.ndim else _own(value)
        for name, value in values.items()
    }


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
