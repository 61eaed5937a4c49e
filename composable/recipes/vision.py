"""Recipes for small image classifiers, measured on small images: see docs/evidence.md."""

import attrs
import torch

from composable.algorithms import TTA, ChannelsLast, LabelSmoothing, RandomTranslation
from composable.optim import cosine
from composable.recipes._muon import muon_factory
from composable.recipes.recipe import Recipe


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
        lr: The learning rate of the convolutions, with updates of AdamW's size.
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


def speedrun_vision(
    *,
    lr: float = 24e-3,
    adamw_lr: float = 3e-3,
    momentum: float = 0.9,
    weight_decay: float = 0.05,
    smoothing: float = 0.2,
    max_shift: int = 2,
    flip: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Recipe:
    """Return parts of airbench, with Muon, for a small convolutional network.

    Training images are shifted by a few pixels, labels are smoothed, and evaluations average
    several views of each image. The optimizer, its schedule and the memory format are as in
    `small_resnet`. Of the parts of airbench that are not here, `InitializeConvolutions`,
    `WhitenedFirstLayer` and `with_lookahead` showed no gain: see docs/evidence.md.

    Args:
        lr: The learning rate of the convolutions, with updates of AdamW's size.
        adamw_lr: The learning rate of the other parameters.
        momentum: The momentum of Muon, in [0, 1).
        weight_decay: The decoupled weight decay of all parameters.
        smoothing: The share of the labels that is spread over all classes, in [0, 1].
        max_shift: The largest shift of a training image in pixels, 0 or more and less than each
            side. In runs of few epochs, 0 may be better.
        flip: Evaluate mirror images too. Where left and right mean the same, add
            `AlternatingFlip()`, which needs the indices of the examples.
        dtype: The dtype in which Muon orthogonalizes. `torch.bfloat16` is faster on GPUs.

    Returns:
        The algorithms, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024,
    https://arxiv.org/abs/2404.00498, and "Muon", 2024, https://kellerjordan.github.io/posts/muon/.

    Example:
        >>> from composable.recipes import speedrun_vision
        >>> [type(one).__name__ for one in speedrun_vision().algorithms]
        ['ChannelsLast', 'LabelSmoothing', 'RandomTranslation', 'TTA']
    """
    base = small_resnet(
        lr=lr, adamw_lr=adamw_lr, momentum=momentum, weight_decay=weight_decay, dtype=dtype
    )
    more = [LabelSmoothing(smoothing), RandomTranslation(max_shift), TTA(flip=flip)]
    return attrs.evolve(base, algorithms=[*base.algorithms, *more])
