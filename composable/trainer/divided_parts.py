"""Which tensors of a checkpoint are divided among the processes of the run that resumes."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from composable.core.state import State
from composable.trainer.structure import check_structure

__all__ = ["divided_parameters"]


def divided_parameters(
    state: State, saved: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str
) -> dict[str, Tensor]:
    """Return the parameters like which tensors of a checkpoint are divided, by their names in it.

    These are the weights of the model and the loss, averages of them, and the values that
    an optimizer has for each element of a parameter. A tensor whose dimensions were saved in
    another order (channels_last) is not among them: it is read whole, and divided when it is
    restored.

    Args:
        state: The state of the run that was built, with its parameters divided.
        saved: What `composable.trainer.run_state.capture` returned; its tensors need no values.
        tensors: The tensors of the checkpoint by name: those of `saved`.
        path: Where it was read, for errors.

    Raises:
        DamagedCheckpointError: The state of an optimizer is not what a run saves.
    """
    pairs = {
        id(tensor): parameter
        for tensor, parameter in _pairs(state, saved, path)
        if hasattr(parameter, "device_mesh") and tensor.shape == parameter.shape
    }
    return {name: pairs[id(one)] for name, one in tensors.items() if id(one) in pairs}


def _pairs(state: State, saved: Mapping[str, Any], path: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tensors with the parameters to which they belong, of any shape."""
    parameters, loss = dict(state.model.named_parameters()), state.loss_module
    of_loss = {} if loss is None else dict(loss.named_parameters())
    yield from _named(saved.get("model"), parameters)
    yield from _named(saved.get("memory"), parameters)
    yield from _named(saved.get("averages"), parameters)
    yield from _named(saved.get("loss_fn"), of_loss)
    for part in (saved.get("raw"), (saved.get("weights") or {}).get("best")):
        yield from _named((part or {}).get("model"), parameters)
        yield from _named((part or {}).get("loss_fn"), of_loss)
    optimizers = saved.get("optimizers", [])
    check_structure({"optimizers": optimizers}, path)
    trained = {f"loss_fn.{name}": one for name, one in of_loss.items()} | parameters
    for optimizer in optimizers:
        yield from _numbered(optimizer, trained)


def _named(
    node: Any, parameters: Mapping[str, Tensor], name: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tensors of a tree that are under the name of a parameter."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _named(value, parameters, str(key))
    elif isinstance(node, Tensor) and name in parameters:
        yield node, parameters[name]


def _numbered(
    optimizer: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tensors of the state of an optimizer, which has a number for each parameter."""
    for names, group in zip(optimizer["parameters"], optimizer["param_groups"], strict=True):
        for name, number in zip(names, group["params"], strict=True):
            values = optimizer["state"].get(number)
            # Under the name of the parameter, all values are its own.
            for value in values.values() if isinstance(values, Mapping) else ():
                yield from _named({name: value}, parameters)
