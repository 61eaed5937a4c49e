"""Other weights for a model whose parameters are sharded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters of a model are sharded, as by `fully_shard`."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a `DTensor` that this process holds; any other tensor as it is."""
    return getattr(tensor, "to_local", lambda: tensor)()


def whole(tensor: Tensor) -> Tensor:
    """Return a `DTensor` as a tensor that every process has; any other tensor as it is.

    All processes call it alike.
    """
    return getattr(tensor, "full_tensor", lambda: tensor)()


def sharded_like(tensor: Tensor, parameter: Tensor | None) -> Tensor:
    """Shard a whole tensor as a parameter is, if it has the same shape.

    Every process has the whole tensor; nothing is sent.
    """
    if not hasattr(parameter, "device_mesh") or hasattr(tensor, "device_mesh"):
        return tensor
    if parameter is None or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # on use: it is slow to import

    mesh = parameter.device_mesh
    placements = parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(mesh.device_type), mesh, placements, src_data_rank=None)


class LentModel(nn.Module):
    """A model that has other weights while it is called.

    Its hooks gather the parameters of the modules that they were registered on, so the model cannot
    be copied; its own weights are put aside for the length of a call.

    Args:
        model: The model.
        tensors: The values of parameters and buffers, by the names of `state_dict`.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self.tensors = dict(tensors)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the other weights."""
        own = self.model.state_dict(keep_vars=True)
        pairs = [(local_part(own[name].detach()), one) for name, one in self.tensors.items()]
        held = [tensor.clone() for tensor, _ in pairs]
        try:
            self._write([tensor for tensor, _ in pairs], [one for _, one in pairs])
            return self.model(*args, **kwargs)
        finally:
            self._write([tensor for tensor, _ in pairs], held)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    @staticmethod
    def _write(targets: list[Tensor], values: list[Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(targets, values, strict=True):
                target.copy_(local_part(value))
