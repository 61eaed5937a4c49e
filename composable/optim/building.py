"""Optimizers from what a user gives, and optimizers that follow a model's surgery."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

__all__ = ["build_optimizers", "update_param_groups"]


def build_optimizers(given: Any, model: nn.Module) -> tuple[Optimizer, ...]:
    """Optimizers from instances and factories.

    Args:
        given: An optimizer, a function of the model's parameters that returns one, or several.
        model: The model after surgery.

    Raises:
        TypeError: Something is neither.
        ValueError: Two optimizers have one parameter, or one has none of the model's.

    Example:
        >>> from functools import partial
        >>> from composable.optim.building import build_optimizers
        >>> factory = partial(torch.optim.SGD, lr=0.1)
        >>> [type(o).__name__ for o in build_optimizers(factory, torch.nn.Linear(1, 1))]
        ['SGD']
    """
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict))
    optimizers = tuple(_build(one, model) for one in (given if several else [given]))
    check_optimizers(optimizers, model)
    return optimizers


def _build(given: Any, model: nn.Module) -> Optimizer:
    if isinstance(given, type) and issubclass(given, Optimizer):
        raise TypeError(
            f"optimizers has the class {given.__name__}: give an instance, "
            f"{given.__name__}(model.parameters(), lr=...), or a function of the parameters, "
            f"functools.partial({given.__name__}, lr=...)."
        )
    optimizer = given
    if not isinstance(given, Optimizer) and callable(given):
        optimizer = given(model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizers has {given!r}: each must be a torch.optim.Optimizer, or a function that "
            "takes the model's parameters and returns one."
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "optimizers has an LBFGS, which calls the model several times in a step: the Trainer "
            "supports optimizers whose step() needs no closure."
        )
    return optimizer


def check_optimizers(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Every parameter in one optimizer at most, and every optimizer about this model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owner: dict[int, int] = {}
    for i, optimizer in enumerate(optimizers):
        found = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not found & names.keys():
            raise ValueError(
                f"optimizers[{i}], {type(optimizer).__name__}, has none of the model's parameters: "
                "make it from the parameters of the model that you give the Trainer, or give a "
                "function of the parameters instead."
            )
        for parameter in found:
            if parameter in owner:
                raise ValueError(
                    f"optimizers[{owner[parameter]}] and optimizers[{i}] both have the parameter "
                    f"{names.get(parameter, 'of another model')!r}: give each parameter to one."
                )
            owner[parameter] = i


def update_param_groups(
    optimizers: Sequence[Optimizer], before: nn.Module, after: nn.Module
) -> None:
    """Make optimizers follow a surgery: the parameters that left go, the new ones come in.

    A new parameter takes the place of the one that had its name, or else joins the group (and
    so gets the options) of the parameters nearest to it in the model.
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
    for name, parameter in added.items():
        place = _nearest(name, old, optimizers)
        if place is None:
            warnings.warn(
                f"no optimizer trains the new parameter {name!r}: its neighbours are in none. "
                "Give optimizers as a function of the parameters to choose.",
                stacklevel=2,
            )
            continue
        if name in old and id(old[name]) in gone:
            replaced = next(i for i, p in enumerate(place["params"]) if p is old[name])
            place["params"][replaced] = parameter
        else:
            place["params"].append(parameter)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in gone]
        for tensor in [p for p in optimizer.state if id(p) in gone]:
            del optimizer.state[tensor]


def _nearest(
    name: str, old: dict[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> dict[str, Any] | None:
    """The group of the old parameter whose name shares most with `name`."""
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
