"""InfoBatch: prune examples with a low loss, and rescale the gradients of those that stay.

Qin et al., "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning", ICLR 2024,
https://arxiv.org/abs/2303.04947
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from composable._support.checks import check_count, check_tensor, checked, within
from composable._support.devices import compute_dtype, generator_device, send


class Pruning(NamedTuple):
    """Which examples are trained on in an epoch, and the weights of their losses."""

    kept: Bool[Tensor, " examples"]
    weights: Float[Tensor, " examples"]


def infobatch(
    losses: Float[Tensor, " examples"],
    *,
    prune: float = 0.5,
    generator: torch.Generator | None = None,
) -> Pruning:
    r"""Prune some of the examples whose loss is below the mean, for one epoch.

    An example with the last known loss $l_i$ is pruned with probability $r$ if $l_i < \bar l$.
    The loss of each example below the mean that stays is multiplied by

    $$w_i = \frac{1}{1 - r}$$

    so that the expectation of the summed gradient equals the sum over all examples.

    Args:
        losses: The last known loss of each example of the dataset. NaN is an example without a
            loss yet, which is not pruned.
        prune: The probability $r$, in [0, 1). At 0, nothing is pruned.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        Which examples are kept, and the weight of each: 1, or $w_i$ below the mean.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `prune` is not in [0, 1), or `losses` is not one number for each example.

    Example:
        >>> losses = torch.tensor([0.1, 0.2, 9.0, float("nan")])
        >>> pruning = infobatch(losses, prune=0.5, generator=torch.Generator().manual_seed(0))
        >>> pruning.weights
        tensor([2., 2., 1., 1.])
        >>> pruning.kept[2:]
        tensor([True, True])
    """
    _check(losses)
    draw = draw_infobatch(len(losses), prune=prune, generator=generator)
    return apply_infobatch(losses, draw, prune=prune)


@checked(batch_size=check_count, prune=within(0, 1, ends="[)"))
def draw_infobatch(
    batch_size: int, *, prune: float = 0.5, generator: torch.Generator | None = None
) -> Bool[Tensor, " examples"]:
    """Draw which examples are pruned if their loss is below the mean.

    Args:
        batch_size: The number of examples of the dataset, 0 or more.
        prune: The probability of each, in [0, 1).
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        Whether each example is pruned, on the device of the generator, by default the CPU.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `batch_size` is negative, or `prune` is not in [0, 1).

    Example:
        >>> draw_infobatch(3, prune=0.0)
        tensor([False, False, False])
    """
    device = generator_device(generator)
    return torch.rand(batch_size, generator=generator, device=device) < prune


@checked(draw=check_tensor, prune=within(0, 1, ends="[)"))
def apply_infobatch(
    losses: Float[Tensor, " examples"], draw: Bool[Tensor, " examples"], *, prune: float = 0.5
) -> Pruning:
    """Apply a draw to the losses. This half is deterministic.

    Args:
        losses: The last known loss of each example, or NaN.
        draw: The result of `draw_infobatch` for as many examples.
        prune: The probability of the draw, in [0, 1).

    Returns:
        Which examples are kept, and the weight of each, on the device of `losses`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `prune` is not in [0, 1), or the numbers of examples differ.

    Example:
        >>> apply_infobatch(torch.tensor([1.0, 3.0]), torch.tensor([True, True])).kept
        tensor([False,  True])
    """
    _check(losses)
    if draw.shape != losses.shape or draw.dtype is not torch.bool:
        raise ValueError(
            f"draw of shape {tuple(draw.shape)} and dtype {draw.dtype} must be as from "
            f"draw_infobatch({len(losses)}), with one value for each loss."
        )
    low = losses < losses.nanmean(dtype=compute_dtype(losses.dtype))  # float16 would overflow
    weights = torch.ones_like(losses).masked_fill(low, 1 / (1 - prune))
    return Pruning(~(low & send(draw, losses.device)), weights)


def _check(losses: Tensor) -> None:
    check_tensor("losses", losses)
    if losses.ndim != 1 or not losses.is_floating_point():
        raise ValueError(
            f"losses must be floating-point numbers [examples], not {losses.dtype} "
            f"{tuple(losses.shape)}."
        )
