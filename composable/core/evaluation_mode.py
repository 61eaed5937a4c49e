"""Evaluation mode, for a part of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module, loss: nn.Module | None = None) -> Iterator[None]:
    """Switch a model, and a loss, to evaluation mode without gradients; restore each mode."""
    roots = [model] if loss is None else [model, loss]
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
