"""Weights that a model holds for an evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["lent"]


@contextmanager
def lent(model: nn.Module, other: nn.Module) -> Iterator[None]:
    """Copy the tensors of another model into a model, and restore its own afterwards.

    Raises:
        RuntimeError: The models have other parameters or buffers.
    """
    if other is model:
        yield
        return
    kept = {name: tensor.detach().clone() for name, tensor in _tensors_of(model).items()}
    theirs = _tensors_of(other)
    if theirs.keys() != kept.keys():
        raise RuntimeError(
            "an algorithm replaced the model at EVAL_START by one with other parameters or "
            f"buffers, {sorted(theirs.keys() ^ kept.keys())}, which the loop's model cannot hold; "
            "in an external loop, evaluate that model yourself."
        )
    try:
        _copy_into(model, theirs)
        yield
    finally:
        _copy_into(model, kept)


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def _copy_into(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in _tensors_of(model).items():
        tensor.copy_(tensors[name])
