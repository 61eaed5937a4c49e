"""Exponential moving average (EMA) of weights, to evaluate a smoothed model.

Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992 (the average
of iterates); Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017 (the
exponential one), https://arxiv.org/abs/1703.01780
"""

from collections.abc import Mapping

from torch import Tensor

from composable._support.checks import checked, within

from ._averages import lerp_tensors


@checked(smoothing=within(0, 1))
def ema(
    average: Mapping[str, Tensor], current: Mapping[str, Tensor], *, smoothing: float
) -> dict[str, Tensor]:
    r"""Move an average of named tensors towards their current values.

    $$a' = s a + (1 - s) c$$

    Floating-point tensors of 16 bits or more are averaged. Others, such as the number of batches of
    a batch norm, are copied from `current`, and so are entries that are infinite or NaN in one of
    the two, as in a causal mask. Of tensors that require gradients, all entries are
    averaged: trained weights are finite.

    Args:
        average: The average so far, by name. Its dtypes are kept: use a float32 average for
            bfloat16 weights, since bfloat16 loses steps below 1/256.
        current: The current tensors, of the same names and shapes.
        smoothing: Share $s$ of the average to keep, in [0, 1]; see `ema_smoothing`.

    Returns:
        New, detached tensors by the same names. Entries at which average and current are equal stay
        the same. With a smoothing of 1 the current values are not read, with 0 the
        average is not.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes differ, or `smoothing` is not in [0, 1].

    Example:
        >>> import torch
        >>> average, weights = {"w": torch.tensor([0.0])}, {"w": torch.tensor([8.0])}
        >>> ema(average, weights, smoothing=0.75)
        {'w': tensor([2.])}
    """
    return lerp_tensors(average, current, 1 - smoothing)


@checked(half_life=within(0, ends="()"), update_interval=within(0, ends="()"))
def ema_smoothing(half_life: float, update_interval: float = 1) -> float:
    r"""Compute the smoothing for which the weight of a value halves in `half_life`.

    $$s = 2^{-\text{update interval} / \text{half life}}$$

    Args:
        half_life: Time after which the weight of a past value halves, above 0.
        update_interval: Time between two updates, above 0, in the unit of `half_life`.

    Returns:
        The smoothing for `ema`, in (0, 1).

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is not above 0.

    Example:
        >>> ema_smoothing(half_life=100, update_interval=100)
        0.5
    """
    return float(2 ** (-update_interval / half_life))
