"""Stochastic weight averaging: evaluate the mean of the weights along the training.

Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging Weights Leads to Wider Optima and
Better Generalization", UAI 2018, https://arxiv.org/abs/1803.05407
"""

from collections.abc import Mapping

from jaxtyping import Shaped
from torch import Tensor

from ._averages import moved_towards
from ._checks import check_count

__all__ = ["swa"]


def swa(
    average: Mapping[str, Shaped[Tensor, " ..."]],
    current: Mapping[str, Shaped[Tensor, " ..."]],
    count: int,
) -> dict[str, Shaped[Tensor, " ..."]]:
    r"""Take one more model into a mean of named tensors.

    $$a' = a + \frac{c - a}{n + 1}$$

    Floating-point tensors are averaged, in fused calls; integer and bool ones, such as a batch
    norm's count of batches, have no mean and are copied from `current`. The running statistics
    of a batch norm are averaged like any tensor, which is not what the averaged weights would
    see: `recompute_batch_norm_statistics` says what they do.

    Args:
        average: The mean so far, by name. Its dtypes are kept: a float32 mean of bfloat16 weights
            is a good idea, since a share of less than 1/256 is lost in bfloat16.
        current: The tensors to take in: the same names and shapes.
        count: How many models $n$ the mean has so far, 0 or more. At 0 the result is `current`.

    Returns:
        New tensors by the same names, detached.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes differ, or `count` is negative.

    Example:
        >>> import torch
        >>> average, weights = {"w": torch.tensor([3.0])}, {"w": torch.tensor([6.0])}
        >>> swa(average, weights, 2)  # of three models: 3, 3 and 6
        {'w': tensor([4.])}
    """
    check_count("count", count)
    return moved_towards(average, current, 1 / (count + 1))
