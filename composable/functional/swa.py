"""Stochastic weight averaging (SWA): evaluate the mean of the weights of several steps.

Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging Weights Leads to Wider Optima and
Better Generalization", UAI 2018, https://arxiv.org/abs/1803.05407
"""

from collections.abc import Mapping

from torch import Tensor

from composable._support.checks import check_count

from ._averages import lerp_tensors


def swa(
    average: Mapping[str, Tensor], current: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    r"""Update a running mean of named tensors.

    $$a' = a + \frac{c - a}{n + 1}$$

    Tensors are averaged or copied as by `ema`. The running statistics of batch norms are averaged
    like any tensor, so they don't match the activations of the averaged weights;
    `recompute_batch_norm_statistics` computes those that do.

    Args:
        average: The mean so far, by name, in float32 for 16-bit weights: its dtypes are kept.
        current: The tensors to add, of the same names and shapes.
        count: Number $n$ of models in the mean so far, 0 or more. For 0 the result is `current`.

    Returns:
        New, detached tensors by the same names.

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
    return lerp_tensors(average, current, 1 / (count + 1))
