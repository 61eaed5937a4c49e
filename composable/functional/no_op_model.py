"""No-op model: a model without computation, to measure the data pipeline and the loop."""

from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_module
from composable._support.surgery import check_unwrapped


def no_op_model(model: nn.Module) -> "IdleModel":
    """Replace a model by one without computation, to measure the data pipeline.

    For any inputs, its output is its only parameter, a scalar, and so is its loss,
    `loss(outputs, batch)`. So the loop runs complete steps, and the optimizer has a parameter.

    Args:
        model: Any module. It is not modified.

    Returns:
        The no-op model, with the dtype, device and mode of `model`; `model` itself if it is a no-op
        model already.

    Raises:
        TypeError: `model` is not a module.
        ValueError: The model is wrapped for distributed training.

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
    """A model of one parameter, which is both its output and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the parameter, for any inputs."""
        return self.weight.view(())

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return the outputs."""
        return outputs

    def loss_weight(self, outputs: Tensor, batch: Any) -> int:
        """Return the weight of the loss of a part of a batch: the same for each."""
        return 1
