"""A model that costs nothing: what is left of a step is the loop and the data."""

from typing import Any

import torch
from torch import Tensor, nn

from ._checks import check_module
from ._surgery import check_unwrapped

__all__ = ["IdleModel", "no_op_model"]


def no_op_model(model: nn.Module) -> "IdleModel":
    """Replace a whole model by one that costs nothing, to measure the data pipeline.

    Whatever it is called with, its output is its only parameter, a number. That is its loss, too:
    `loss(outputs, batch)`. So the loop can go through all of a step, and an optimizer has
    something to do.

    Args:
        model: Any module; it is left as it was.

    Returns:
        The model that does nothing, with the dtype, device and mode of the given one. One that
        does nothing already is returned itself.

    Raises:
        TypeError: `model` is no module.
        ValueError: It is wrapped for distributed training.

    Example:
        >>> idle = no_op_model(nn.Linear(4, 3))
        >>> idle(torch.rand(8, 4)).detach()
        tensor(1.)
        >>> idle.loss(idle(torch.rand(8, 4)), batch=None).backward()
        >>> idle.weight.grad
        tensor(1.)
    """
    check_module("model", model)
    check_unwrapped(model)
    if isinstance(model, IdleModel):
        return model
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(()))
    return IdleModel().to(like.device, like.dtype).train(model.training)


class IdleModel(nn.Module):
    """A model of one parameter, which is its output and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Give the parameter, whatever the inputs."""
        return self.weight.view(())

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """Give the outputs."""
        return outputs
