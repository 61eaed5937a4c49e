"""The meaning of an algorithm: the fields of the state that its function changes."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch import nn

from composable import Algorithm, State

Meaning = Callable[[Any, State], Mapping[str, Any]]
"""From an algorithm and a state: the fields of the state that the function changes."""


def hyperparameters_of(algorithm: Algorithm, *excluded: str) -> dict[str, Any]:
    """Collect the hyperparameters of an algorithm, by name."""
    names = [field.name for field in attrs.fields(type(algorithm))]
    return {name: getattr(algorithm, name) for name in names if name not in ("name", *excluded)}


def surgery(function: Callable[..., nn.Module], *excluded: str) -> Any:
    """Replace the model by the result of a function."""
    return lambda a, s: {"model": function(s.model, **hyperparameters_of(a, *excluded))}


def drawn_surgery(function: Callable[..., nn.Module], **more: Any) -> Any:
    """Replace the model by the result of a function that draws random numbers."""
    return lambda a, s: {
        "model": function(
            s.model, **hyperparameters_of(a), **more, generator=s.key.fold(a.name).generator()
        )
    }


def on_inputs(function: Callable[..., Any], *excluded: str) -> Any:
    """Replace the inputs by the result of a function that draws random numbers."""
    return lambda a, s: {
        "batch": (
            function(s.inputs, **hyperparameters_of(a, *excluded), generator=s.generator(a.name)),
            s.targets,
        )
    }


def mixing(function: Callable[..., Any]) -> Any:
    """Replace the batch by the result of a function that mixes it."""

    def mixed(a: Algorithm, s: State) -> Mapping[str, Any]:
        options = hyperparameters_of(a, "interpolate_loss")
        result = function(s.inputs, s.targets, **options, generator=s.generator(a.name))
        return {"batch": (result.inputs, result.mixed_targets)}

    return mixed
