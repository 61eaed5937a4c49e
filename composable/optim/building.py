"""Build optimizers, and update their parameter groups after model surgery."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composable._support.notes import add_note
from composable._support.warn import warn_user
from composable.optim.decay import WEIGHTS, decay_groups
from composable.optim.multi import base_optimizers
from composable.optim.muon import Muon
from composable.optim.muon_groups import ADAMW, MUON
from composable.optim.roles import (
    EMBEDDINGS,
    MATRICES,
    NORMS_AND_BIASES,
    OTHERS,
    TABLES,
    USUAL,
    ModelGroups,
    ModelParameters,
    Role,
    roles_of,
)

_LOSS = "loss_fn"


def build_optimizers(
    given: Any,
    model: nn.Module,
    loss: nn.Module | None = None,
    *,
    decay_norms_and_biases: bool = True,
) -> tuple[Optimizer, ...]:
    """Build optimizers from instances and factories.

    Args:
        given: An optimizer, a function that takes the parameters and returns one, or several of
            these.
        model: The model after surgery.
        loss: The module that computes the loss, if there is one. Functions get its parameters after
            the model's.
        decay_norms_and_biases: Whether functions get the parameters in one group. Otherwise they
            get the groups of `composable.optim.decay_groups`.

    Raises:
        TypeError: An item is neither, or an instance whose parameters can't be divided.
        ValueError: Two optimizers share a parameter, or one has no parameter of model and loss.

    Warns:
        UserWarning: No optimizer has a parameter of the loss that requires a gradient.

    Example:
        >>> from functools import partial
        >>> from composable.optim.building import build_optimizers
        >>> factory = partial(torch.optim.SGD, lr=0.1)
        >>> [type(o).__name__ for o in build_optimizers(factory, torch.nn.Linear(1, 1))]
        ['SGD']
    """
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict))
    given = list(given) if several else [given]
    named = named_parameters(model, loss)
    modules = [model] if loss is None else [model, loss]
    if decay_norms_and_biases:
        optimizers = tuple(_build(one, ModelParameters(named.values(), modules)) for one in given)
    else:
        optimizers = tuple(_build_divided(one, modules) for one in given)
    check_optimizers(optimizers, model, loss)
    held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
    own = [name for name, p in named.items() if name.startswith(_LOSS) and p.requires_grad]
    untrained = [name for name in own if id(named[name]) not in held]
    if optimizers and untrained:
        warn_user(
            f"no optimizer has the parameters {', '.join(untrained)}, so they are not trained; "
            "pass optimizers as a function of the parameters, add an optimizer for them, or call "
            "loss_fn.requires_grad_(False).",
        )
    return optimizers


def named_parameters(model: nn.Module, loss: nn.Module | None) -> dict[str, nn.Parameter]:
    """Return the parameters of a model, and then of a loss, each once."""
    named = dict(model.named_parameters())
    if loss is not None:
        known = {id(parameter) for parameter in named.values()}
        ours = loss.named_parameters(prefix=_LOSS)
        named |= {name: parameter for name, parameter in ours if id(parameter) not in known}
    return named


def _build_divided(given: Any, modules: Sequence[nn.Module]) -> Optimizer:
    """Build an optimizer without weight decay of norms and biases."""
    if isinstance(given, Optimizer):
        raise TypeError(
            f"decay_norms_and_biases=False can't divide the parameters of the given "
            f"{type(given).__name__}: pass a function of the parameters, "
            f"functools.partial({type(given).__name__}, ...), or build it from "
            "composable.optim.decay_groups(model) and drop the argument."
        )
    optimizer = _build(given, ModelGroups(decay_groups(*modules), modules))
    if not any("weight_decay" in one.defaults for one in base_optimizers([optimizer])):
        raise ValueError(
            f"decay_norms_and_biases=False needs an optimizer with weight_decay, which "
            f"{type(optimizer).__name__} does not have; drop the argument."
        )
    return optimizer


def _build(given: Any, parameters: Any) -> Optimizer:
    if isinstance(given, type) and issubclass(given, Optimizer):
        raise TypeError(
            f"optimizers contains the class {given.__name__}: pass an instance, "
            f"{given.__name__}(model.parameters(), lr=...), or a function of the parameters, "
            f"functools.partial({given.__name__}, lr=...)."
        )
    optimizer = given
    if not isinstance(given, Optimizer) and callable(given):
        try:
            optimizer = given(parameters)
        except (AttributeError, TypeError) as error:
            add_note(
                error,
                "raised by a function in optimizers, which gets the parameters of the model, and "
                "not the model: lambda parameters: torch.optim.SGD(parameters, lr=0.1).",
            )
            raise
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizers contains {given!r}: each must be a torch.optim.Optimizer, or a function "
            "that takes the model's parameters and returns one."
        )
    return optimizer


def check_optimizers(
    optimizers: Sequence[Optimizer], model: nn.Module, loss: nn.Module | None = None
) -> None:
    """Check that no two share a parameter, and that each has one of the model or the loss."""
    names = {id(parameter): name for name, parameter in named_parameters(model, loss).items()}
    owner: dict[int, int] = {}
    for i, optimizer in enumerate(optimizers):
        found = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not found & names.keys():
            raise ValueError(
                f"optimizers[{i}], {type(optimizer).__name__}, has none of the model's parameters: "
                "build it from the parameters of the Trainer's model, or pass a function of the "
                "parameters instead."
            )
        for parameter in found:
            if parameter in owner:
                raise ValueError(
                    f"optimizers[{owner[parameter]}] and optimizers[{i}] both have the parameter "
                    f"{names.get(parameter, 'of another model')!r}: pass each parameter to only "
                    "one."
                )
            owner[parameter] = i
        for one in base_optimizers([optimizer]):
            if isinstance(one, Muon):
                one.check_model(model)


def update_param_groups(
    optimizers: Sequence[Optimizer], before: nn.Module, after: nn.Module
) -> None:
    """Update the parameter groups after surgery: remove old parameters, and add new ones.

    A new parameter replaces the one of the same name. Otherwise it joins the group of its role, or
    one of several roles, beside the nearest parameter in the model; without one, that parameter's
    group. So it gets the options of the group.
    """
    old = dict(before.named_parameters())
    new = dict(after.named_parameters())
    gone = {id(p): name for name, p in old.items()}
    for parameter in new.values():
        gone.pop(id(parameter), None)
    known = {id(p) for p in old.values()}
    added = {name: p for name, p in new.items() if id(p) not in known}
    if not optimizers or not (gone or added):
        return
    parts = list(base_optimizers(optimizers))
    roles = {id(role.parameter): role for role in roles_of(after)}
    for name, parameter in added.items():
        place = _nearest(name, old, parts)
        if place is None:
            warn_user(
                f"the new parameter {name!r} is not trained, because no optimizer has another "
                "parameter of the model. Pass optimizers as a function of the parameters.",
            )
        elif name in old and id(old[name]) in gone:
            replaced = next(i for i, p in enumerate(place["params"]) if p is old[name])
            place["params"][replaced] = parameter
        else:
            _group_for(roles[id(parameter)], place, parts)["params"].append(parameter)
    names = {id(p): name for name, p in new.items()}
    for optimizer in parts:
        _remove(optimizer, gone, names)


_MERGED = {
    NORMS_AND_BIASES: (OTHERS,),
    MATRICES: (WEIGHTS,),
    TABLES: (EMBEDDINGS, WEIGHTS, OTHERS),
}
"""The groups of several roles that a role may be in, unless it is in "weights" or "others"."""


def _group_for(
    role: Role, place: dict[str, Any], optimizers: Sequence[Optimizer]
) -> dict[str, Any]:
    """Return the group of a new parameter beside one of the group `place`."""
    owner = next(one for one in optimizers if any(g is place for g in one.param_groups))
    merged = _MERGED.get(role.name, (WEIGHTS, OTHERS))
    wanted = [(role.name, one) for one in (owner, *optimizers)] + [(one, owner) for one in merged]
    named = [(one, g) for name, one in wanted for g in one.param_groups if g.get("name") == name]
    one, group = (named or [(owner, place)])[0]
    if not isinstance(one, Muon):
        return group
    half = MUON if role.name == MATRICES else ADAMW
    alike = [own for own in (group, *one.param_groups) if own["half"] == half]
    layout = {**USUAL, **role.layout}
    for own in alike:
        if {name: own.get(name) or usual for name, usual in USUAL.items()} == layout:
            return own
    options = alike[0] if alike else {"name": MATRICES if half == MUON else OTHERS, "half": half}
    one.add_param_group({**options, "params": [], **layout})
    return one.param_groups[-1]


def _remove(optimizer: Optimizer, gone: Mapping[int, str], names: Mapping[int, str]) -> None:
    """Remove parameters from an optimizer, and update the names of the others."""
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in gone]
        if "param_names" in group:
            group["param_names"] = [names.get(id(p), "") for p in group["params"]]
    for tensor in [p for p in optimizer.state if id(p) in gone]:
        del optimizer.state[tensor]


def _nearest(
    name: str, old: dict[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> dict[str, Any] | None:
    """Find the group of the old parameter whose name shares the longest prefix with `name`."""
    groups = {id(p): group for o in optimizers for group in o.param_groups for p in group["params"]}
    candidates = [(_shared(name, other), other) for other, p in old.items() if id(p) in groups]
    if not candidates:
        return None
    _, nearest = max(candidates, key=lambda pair: pair[0])  # the first of the best
    return groups[id(old[nearest])]


def _shared(name: str, other: str) -> tuple[int, bool]:
    ours, theirs = name.split("."), other.split(".")
    depth = 0
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            break
        depth += 1
    return depth, ours[-1] == theirs[-1]
