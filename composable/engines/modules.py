"""The modules of a run: their loss, their gradients, and the buffers that they write."""

from itertools import chain

import attrs
import torch
from torch import Tensor, nn

from composable.core.loss import ModelLoss
from composable.core.state import State

__all__ = [
    "Buffers",
    "bind_loss",
    "modules_of",
    "trained_parameters",
    "write_gradients",
]


def modules_of(state: State) -> list[nn.Module]:
    """Return the model, and the module that computes the loss if there is one."""
    return [one for one in (state.model, state.loss_module) if one is not None]


def bind_loss(state: State) -> State:
    """Bind a loss that the model computes itself to the model of `state`."""
    if isinstance(state.loss_fn, ModelLoss) and state.loss_fn.model is not state.model:
        return state.evolve(loss_fn=ModelLoss(state.model))
    return state


def trained_parameters(state: State) -> list[Tensor]:
    """Return the parameters that may have a gradient: the same on every process."""
    groups = (group["params"] for one in state.optimizers for group in one.param_groups)
    found = chain(*(module.parameters() for module in modules_of(state)), *groups)
    return [p for p in dict.fromkeys(found) if p.requires_grad]


def write_gradients(state: State) -> None:
    """Set `.grad` of the parameters to `state.gradients`, in their dtypes."""
    gradients = state.gradients or {}
    for name, parameter in state.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.dtype)


@attrs.frozen(eq=False)
class Buffers:
    """The values of the buffers before a forward pass that may be discarded."""

    copies: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, state: State) -> "Buffers":
        """Copy the buffers of the model, and of the module that computes the loss."""
        return cls(
            [(buffer, buffer.clone()) for one in modules_of(state) for buffer in one.buffers()]
        )

    def restore(self) -> None:
        """Restore the buffers."""
        with torch.no_grad():
            for buffer, copy in self.copies:
                buffer.copy_(copy)
