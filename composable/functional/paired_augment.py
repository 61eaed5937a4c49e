"""Paired augmentation: a random amount in one epoch, and the opposite one in the next.

The alternating flip of Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024,
https://arxiv.org/abs/2404.00498, for any augmentation with an inverse.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from composable._support.checks import check_is_callable, check_tensor, checked
from composable._support.hashing import hash_integers
from composable.functional.alternating_flip import draw_alternating_flip

_BITS = 23
"""The bits of an amount, of which float32 loses none."""


@checked(inputs=check_tensor, transform=check_is_callable)
def paired_augment(
    inputs: Shaped[Tensor, "batch ..."],
    indices: Int[Tensor, " batch"],
    transform: Callable[[Tensor, Tensor], Tensor],
    *,
    epoch: int,
    seed: int = 0,
) -> Tensor:
    """Augment each example by an amount in one epoch, and by the opposite one in the next.

    Args:
        inputs: The inputs of a batch, of any dtype.
        indices: The index of each example in its dataset, as integers `[batch]`.
        transform: A function of the inputs and an amount for each example, in (-1, 1): opposite
            amounts must give opposite changes. It must be deterministic.
        epoch: The number of the epoch, 0 or more.
        seed: The seed of the amounts, from 0 to 2**63 - 1.

    Returns:
        What `transform` returns for `draw_paired_augment(indices, epoch=epoch, seed=seed)`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `epoch` or `seed` is out of range, or there is not one index for each input.

    Example:
        >>> def shift(x, amount):
        ...     return x + amount
        >>> first, second = (
        ...     paired_augment(torch.zeros(3), torch.arange(3), shift, epoch=epoch)
        ...     for epoch in (0, 1)
        ... )
        >>> first + second
        tensor([0., 0., 0.])
    """
    amount = draw_paired_augment(indices, epoch=epoch, seed=seed)
    if inputs.shape[:1] != amount.shape:
        raise ValueError(
            "inputs must be [batch, ...], and indices [batch], not "
            f"{tuple(inputs.shape)} and {tuple(amount.shape)}."
        )
    return transform(inputs, amount)


def draw_paired_augment(
    indices: Int[Tensor, " batch"], *, epoch: int, seed: int = 0
) -> Float[Tensor, " batch"]:
    """Draw the amount of each example in an epoch, from its index alone.

    The sign is random in the first epoch and alternates afterwards: it is negative where
    `draw_alternating_flip` is true. The magnitude is uniform, and new in each pair of epochs: so
    epochs 0 and 1 have opposite amounts, epochs 2 and 3, and so on.

    Args:
        indices: The index of each example in its dataset, as integers `[batch]`.
        epoch: The number of the epoch, 0 or more.
        seed: The seed of the amounts, from 0 to 2**63 - 1.

    Returns:
        Amounts in (-1, 1), never 0, as float32 on the device of `indices`; the same on every
        device.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `epoch` or `seed` is out of range.

    Example:
        >>> for epoch in range(3):
        ...     print(draw_paired_augment(torch.arange(3), epoch=epoch))
        tensor([ 0.3382, -0.8878, -0.6488])
        tensor([-0.3382,  0.8878,  0.6488])
        tensor([ 0.5666, -0.4589, -0.8301])
    """
    flipped = draw_alternating_flip(indices, epoch=epoch, seed=seed)
    # Another seed: 0 would be hashed to 0 again.
    hashed = hash_integers(hash_integers(indices.long(), seed) + epoch // 2, seed + 1)
    magnitude = ((hashed >> (62 - _BITS)).float() + 0.5) / 2**_BITS
    return torch.where(flipped, -magnitude, magnitude)
