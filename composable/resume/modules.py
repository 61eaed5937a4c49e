"""The state of a module in a checkpoint: the weights with which it is evaluated, and its modes."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from composable.checkpoint.errors import MismatchError
from composable.resume.changes import entry


class ModuleState(TypedDict):
    """The model, or the module that computes the loss, with the weights that are evaluated."""

    weights: dict[str, Any]
    buffers: dict[str, Tensor]
    without_gradients: list[str]
    in_evaluation: list[str]


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def capture_module(module: nn.Module, evaluated: Mapping[str, Tensor]) -> ModuleState:
    """Return the state of a module.

    Args:
        module: The module.
        evaluated: The values with which some of its tensors are evaluated, by name.
    """
    own = module_tensors(module)
    new = {id(own[name]): tensor for name, tensor in evaluated.items()}  # a tensor may have names
    weights = {n: new.get(id(one), one) for n, one in module.state_dict(keep_vars=True).items()}
    named = {n: b for n, b in module.named_buffers() if n not in weights}  # not persistent
    return {
        "weights": {n: t.detach() if isinstance(t, Tensor) else t for n, t in weights.items()},
        "buffers": {name: new.get(id(buffer), buffer) for name, buffer in named.items()},
        "without_gradients": [n for n, p in module.named_parameters() if not p.requires_grad],
        "in_evaluation": [name for name, one in module.named_modules() if not one.training],
    }


def restore_module(
    module: nn.Module, saved: Mapping[str, Any], trained: Mapping[str, Tensor], what: str
) -> dict[int, Tensor]:
    """Copy values into a module, and map the ids of saved tensors to the module's.

    Args:
        module: The module, changed in place.
        saved: What `capture_module` returned.
        trained: The values that are trained, where the module is evaluated with others.
        what: Its entry in the checkpoint, "model" or "loss_fn".

    Raises:
        MismatchError: The names, shapes and dtypes differ from the module's.
    """
    with entry(what):
        check_saved_module(module, saved, what)
        module.load_state_dict(saved["weights"])
    check_saved_tensors(module, trained, f"raw/{what}")
    tensors = module_tensors(module)
    with torch.no_grad():
        for name, value in {**saved["buffers"], **trained}.items():
            tensors[name].copy_(value)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in saved["without_gradients"])
    for name, one in module.named_modules():
        one.training = name not in saved["in_evaluation"]
    own = {**module.state_dict(keep_vars=True), **dict(module.named_buffers())}
    theirs = {**saved["weights"], **saved["buffers"], **trained}
    return {id(theirs[name]): own[name] for name in theirs if isinstance(own[name], Tensor)}


def check_saved_module(module: nn.Module, saved: Mapping[str, Any], what: str) -> None:
    """Check that the saved names, shapes and dtypes match the model's or the loss's."""
    own = {**module.state_dict(), **dict(module.named_buffers())}
    theirs = {**saved["weights"], **saved["buffers"]}
    differences = list(_differences(own, theirs, what))
    if differences:
        more = f"; and {len(differences) - 5} more" if differences[5:] else ""
        shown = "; ".join(differences[:5]) + more
        raise MismatchError(
            f"weights was saved from another {what}: {shown}. Build the {what} and its algorithms "
            "as in the saved run; load_ignore_keys= skips entries, and load_weights_only=True "
            "loads the weights alone."
        )


def check_saved_tensors(module: nn.Module, saved: Mapping[str, Any], where: str) -> None:
    """Check that saved tensors are values of tensors of a module."""
    own = module_tensors(module)
    for name, value in saved.items():
        if name not in own or not isinstance(value, Tensor) or value.shape != own[name].shape:
            wanted = f"a tensor of shape {list(own[name].shape)}" if name in own else "absent"
            raise MismatchError(f"{where}/{name[:80]} must be {wanted}, as in this model.")


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
