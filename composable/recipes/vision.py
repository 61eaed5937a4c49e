"""Recipes for small image classifiers, measured on 32 x 32 images: see docs/evidence.md."""

import torch

from composable.algorithms import ChannelsLast
from composable.optim import cosine
from composable.recipes._muon import muon_factory
from composable.recipes.recipe import Recipe

__all__ = ["small_resnet"]


def small_resnet(
    *,
    lr: float = 12e-3,
    adamw_lr: float = 3e-3,
    momentum: float = 0.9,
    weight_decay: float = 0.05,
    warmup: str = "0.1dur",
    dtype: torch.dtype = torch.float32,
) -> Recipe:
    """Return Muon and the channels-last memory format, for a small residual network.

    Muon updates the weights of the convolutions, and AdamW all other parameters. The learning rates
    rise linearly during the warm-up and fall to 0 by a cosine.

    Args:
        lr: The learning rate of the convolutions, with updates of the size of those of AdamW.
        adamw_lr: The learning rate of the other parameters.
        momentum: The momentum of Muon, in [0, 1).
        weight_decay: The decoupled weight decay of all parameters.
        warmup: The length of the warm-up, such as "1ep".
        dtype: The dtype in which Muon orthogonalizes. `torch.bfloat16` is faster on GPUs.

    Returns:
        The algorithm, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon/.

    Example:
        >>> from composable.recipes import small_resnet
        >>> small_resnet(lr=0.02).algorithms
        (ChannelsLast(),)
    """
    optimizer = muon_factory(
        lr=lr, adamw_lr=adamw_lr, momentum=momentum, weight_decay=weight_decay, dtype=dtype
    )
    return Recipe([ChannelsLast()], optimizer, cosine(warmup=warmup))
