"""Which tensors of a checkpoint are sharded, like the parameters to which they belong."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from composable.core.state import State

__all__ = ["sharded_pairs"]


def sharded_pairs(state: State, saved: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors of a checkpoint that are sharded, each with its parameter.

    These are the weights of the model and the loss, averages of them, and the values that
    an optimizer has for each element of a parameter.

    Args:
        state: The state of the run that was built, with its parameters sharded.
        saved: The state in the checkpoint, whatever it is; its tensors need no values.
    """
    parameters, loss = dict(state.model.named_parameters()), state.loss_module
    of_loss = {} if loss is None else dict(loss.named_parameters())
    return [
        (tensor, parameter)
        for tensor, parameter in _pairs(saved, parameters, of_loss)
        if hasattr(parameter, "device_mesh") and tensor.shape == parameter.shape
    ]


def _pairs(
    saved: Mapping[str, Any], parameters: Mapping[str, Tensor], of_loss: Mapping[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tensors with the parameters to which they belong, of any shape."""
    weights = saved.get("weights")
    best = weights.get("best") if isinstance(weights, Mapping) else None
    for part in (saved, saved.get("raw"), best):
        if isinstance(part, Mapping):
            yield from _named(part.get("model"), parameters)
            yield from _named(part.get("loss_fn"), of_loss)
    yield from _named(saved.get("memory"), parameters)
    yield from _named(saved.get("averages"), parameters)
    trained = {**{f"loss_fn.{name}": one for name, one in of_loss.items()}, **parameters}
    optimizers = saved.get("optimizers")
    for optimizer in optimizers if isinstance(optimizers, list) else ():
        for one in _numbered(optimizer):
            yield from _named(one, trained)


def _named(
    node: Any, parameters: Mapping[str, Tensor], name: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tensors of a tree that are under the name of a parameter."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _named(value, parameters, str(key))
    elif isinstance(node, Tensor) and name in parameters:
        yield node, parameters[name]


def _numbered(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the values that an optimizer has of each parameter, by its name."""
    with suppress(KeyError, TypeError, AttributeError, ValueError):  # a later check says more
        for names, group in zip(optimizer["parameters"], optimizer["param_groups"], strict=True):
            for name, number in zip(names, group["params"], strict=True):
                for value in optimizer["state"].get(number, {}).values():
                    yield {name: value}
