"""Gradients as flat tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["flat_gradients", "kinds_of", "write_gradients"]


def kinds_of(parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return the numbers of the parameters of each dtype and device, the last ones first.

    Args:
        parameters: The parameters, in the order of the model.

    Example:
        >>> from composable.engines.flat import kinds_of
        >>> kinds_of([torch.ones(2), torch.ones(2).double(), torch.ones(1)])
        [[2, 0], [1]]
    """
    kinds: dict[Any, list[int]] = {}
    for i in reversed(range(len(parameters))):
        kinds.setdefault((parameters[i].dtype, parameters[i].device), []).append(i)
    return list(kinds.values())


def flat_gradients(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
    """Return gradients as a tensor of one dimension; missing ones are 0."""
    filled = [
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip(parameters, grads, strict=True)
    ]
    return torch.cat([_real(_dense(one)).reshape(-1) for one in filled])


def write_gradients(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Set the gradients to parts of a flat tensor."""
    likes = [_real(parameter.detach()) for parameter in parameters]
    parts = flat.split_with_sizes([like.numel() for like in likes])
    for parameter, like, part in zip(parameters, likes, parts, strict=True):
        grad = part.view(like.shape)
        if parameter.is_complex():
            grad = torch.view_as_complex(grad.clone())
        parameter.grad = grad


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
