"""Exponential moving average of weights: evaluate a smoother model than the one that trains.

Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992 (the average
of iterates); Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017 (the
exponential one), https://arxiv.org/abs/1703.01780
"""

from collections.abc import Mapping
from math import inf

from jaxtyping import Shaped
from torch import Tensor

from ._averages import moved_towards
from ._checks import check_range

__all__ = ["ema", "ema_smoothing"]


def ema(
    average: Mapping[str, Shaped[Tensor, " ..."]],
    current: Mapping[str, Shaped[Tensor, " ..."]],
    *,
    smoothing: float,
) -> dict[str, Shaped[Tensor, " ..."]]:
    r"""Move an average of named tensors towards their current values.

    $$a' = s a + (1 - s) c$$

    Floating-point tensors are averaged, in fused calls; integer and bool ones, such as a batch
    norm's count of batches, have no average and are copied from `current`.

    Args:
        average: The average so far, by name. Its dtypes are kept: a float32 average of bfloat16
            weights is a good idea, since a step of less than 1/256 is lost in bfloat16.
        current: The tensors to follow: the same names and shapes.
        smoothing: The share $s$ that the average keeps, in [0, 1]; see `ema_smoothing`.

    Returns:
        New tensors by the same names, detached. Where average and current agree, so does the
        result, exactly.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes differ, or `smoothing` is not in [0, 1].

    Example:
        >>> import torch
        >>> average, weights = {"w": torch.tensor([0.0])}, {"w": torch.tensor([8.0])}
        >>> ema(average, weights, smoothing=0.75)
        {'w': tensor([2.])}
    """
    check_range("smoothing", smoothing, 0, 1, advice="ema_smoothing(half_life) computes it.")
    return moved_towards(average, current, 1 - smoothing)


def ema_smoothing(half_life: float, update_interval: float = 1) -> float:
    r"""Compute the smoothing with which a value's weight halves in `half_life`.

    $$s = 2^{-\text{update interval} / \text{half life}}$$

    Args:
        half_life: Time in which the weight of a past value halves, above 0.
        update_interval: Time between two updates, above 0, in the unit of `half_life`.

    Returns:
        The smoothing for `ema`, in (0, 1).

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is not above 0.

    Example:
        >>> ema_smoothing(half_life=100, update_interval=100)
        0.5
    """
    check_range("half_life", half_life, 0, inf, ends="()")
    check_range("update_interval", update_interval, 0, inf, ends="()")
    return float(2 ** (-update_interval / half_life))
