"""Batches of examples of similar length, which need less padding.

Khomenko, Shyshkov, Radyvonenko and Bokhan, "Accelerating recurrent neural network training using
sequence bucketing and multi-GPU data parallelization", 2017, https://arxiv.org/abs/1708.05604
"""

import torch
from jaxtyping import Int, Real
from torch import Tensor

from composable._support.checks import check_tensor, checked, minimum
from composable._support.devices import generator_device, send


@checked(lengths=check_tensor, batch_size=minimum(1), window=minimum(1))
def group_by_length(
    lengths: Real[Tensor, " examples"],
    batch_size: int,
    *,
    window: int = 50,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " examples"]:
    """Reorder examples so that each batch has similar lengths.

    The order is cut into windows of `window` batches. In each window the examples are sorted by
    length and cut into batches, which are then shuffled. Within a batch, the examples keep their
    order. The examples after the last whole batch keep their places, so an incomplete batch is a
    random sample too, if the order is random.

    Args:
        lengths: The length of each example, in the order to start from: a number of tokens or
            frames, or another size, such as the width of an image.
        batch_size: Number of examples in a batch, at least 1.
        window: Number of batches whose examples are sorted together, at least 1. With 1, the order
            does not change.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The positions of the examples in the new order, as int64, on the device of `lengths`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `batch_size` or `window` is out of range, or `lengths` has not one dimension.

    Example:
        >>> lengths = torch.tensor([9, 2, 7, 1, 8, 3, 5])
        >>> order = group_by_length(lengths, 2, generator=torch.Generator().manual_seed(0))
        >>> lengths[order]
        tensor([9, 8, 2, 1, 7, 3, 5])
    """
    if lengths.ndim != 1:
        raise ValueError(f"lengths must have one dimension, not the shape {tuple(lengths.shape)}.")
    count = len(lengths) // batch_size
    whole, device = count * batch_size, lengths.device
    by_length = lengths[:whole].argsort(stable=True)
    batches = _stable(by_length, window * batch_size).view(count, batch_size).sort(1).values
    drawn = torch.randperm(count, generator=generator, device=generator_device(generator))
    order = send(_stable(drawn, window), device)
    rest = torch.arange(whole, len(lengths), device=device)
    return torch.cat([batches[order].flatten(), rest])


def _stable(positions: Tensor, window: int) -> Tensor:
    """Sort positions by their window, and keep the order within each."""
    return positions[(positions // window).argsort(stable=True)]
