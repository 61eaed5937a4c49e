"""Tensors that one call of a model passes from layers to later layers."""

from typing import Any

import torch
from torch import Tensor


class Trace:
    """Tensors that layers of one model keep for later layers of the same call.

    All layers that share a trace have the same object. The first of them to be called clears it,
    and so does the last, so that nothing is kept between two calls. Copies start empty.
    """

    def __init__(self) -> None:
        self.kept: dict[Any, Tensor] = {}
        self.with_graph = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, ()

    def clear(self) -> None:
        """Keep nothing."""
        self.kept = {}

    def keep(self, key: Any, tensor: Tensor) -> None:
        """Keep a tensor for later layers."""
        self.kept[key] = tensor
        self.with_graph = torch.is_grad_enabled()

    def get(self, key: Any, like: Tensor, method: str) -> Tensor:
        """Return a kept tensor.

        Args:
            key: Its key.
            like: A tensor of the same shape.
            method: The method, for errors.

        Raises:
            RuntimeError: It was not kept in this call, or without the graph of its gradient.
            ValueError: It has another shape.
        """
        tensor = self.kept.get(key)
        if tensor is None or (
            torch.is_grad_enabled() > self.with_graph
            and tensor.is_floating_point() > tensor.requires_grad
        ):
            raise RuntimeError(
                f"{method} needs what an earlier layer computed in the same call, which is not "
                "known: call the whole model on token ids, and don't recompute its layers in the "
                "backward pass (activation checkpointing)."
            )
        if tensor.shape != like.shape:
            raise ValueError(
                f"{method} needs layers of one shape, but an earlier one has "
                f"{tuple(tensor.shape)} and a later one {tuple(like.shape)}; pass the "
                "layers of one stack as target."
            )
        return tensor
