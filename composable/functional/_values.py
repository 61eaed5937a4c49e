"""The layers of a model that make the values of self-attention."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.surgery import report_nothing

from .projections import ADVICE, REGISTRY, find_projections, is_transposed


@dataclass(frozen=True)
class Values:
    """A layer that makes values.

    Args:
        name: The name of the layer in the model.
        stack: A name that all layers of one stack share.
        inputs: The number of its input features.
        width: The number of features of the values, which are the last of its outputs.
    """

    name: str
    stack: str
    inputs: int
    width: int


def find_values(model: nn.Module) -> list[Values]:
    """Return the layers that make the values of the known self-attention blocks, in their order.

    `nn.MultiheadAttention` has none that is called: it reads the weights.
    """
    found = []
    for path, block, parts in find_projections(model):
        crosses = getattr(block, "is_cross_attention", False)
        if parts.value is None or crosses or isinstance(block, nn.MultiheadAttention):
            continue
        name = f"{path}.{parts.value}".lstrip(".")
        layer: Any = model.get_submodule(name)
        inputs, outputs = layer.weight.shape if is_transposed(layer) else layer.weight.shape[::-1]
        width = outputs // 3 if parts.fused else outputs
        found.append(Values(name, re.sub(r"\d+", "*", name), inputs, width))
    return found


def split_values(outputs: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Split the outputs of a layer into queries and keys, if it makes them too, and values."""
    others = outputs.shape[-1] - width
    return outputs[..., :others], outputs[..., others:]


def join_values(others: Tensor, values: Tensor) -> Tensor:
    """Undo `split_values`, with new values."""
    return torch.cat([others, values.to(others.dtype)], -1) if others.shape[-1] else values


def report_no_values(method: str, sought: str) -> None:
    """Warn that a model has no values to change."""
    report_nothing(method, f"{sought} of the classes {REGISTRY.names}", ADVICE)
