"""EMA-Nesterov: gradients at a point ahead of the weights, in the mean direction of the steps.

"EMA-Nesterov: Stabilizing Nesterov's Lookahead for Accelerated Deep Learning Optimization", 2026,
https://arxiv.org/abs/2605.25395
"""

from math import inf

from torch import Tensor

from composable._support.checks import check_range
from composable._support.foreach import foreach_, per_dtype

from ._averages import Floats, as_lists

__all__ = ["ema_nesterov_step"]


def ema_nesterov_step(
    before: Floats,
    after: Floats,
    average: Floats,
    *,
    lookahead: float,
    last_lookahead: float,
    decay: float = 0.99,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    r"""Move the weights after a step of any optimizer ahead, by an average of the steps.

    The optimizer $A$ steps from a point $y$ ahead of the weights $x$, where gradients are computed:

    $$x' = A(y), \qquad m' = \gamma m + (1 - \gamma)(x' - x), \qquad y' = x' + \beta' m'$$

    Args:
        before: The point $y = x + \beta m$ from which the optimizer stepped, by name.
        after: The weights $x'$ after the step, by the same names.
        average: The average $m$ of the steps, by the same names; zeros before the first step. Its
            dtypes are kept: use float32 for 16-bit weights.
        lookahead: The distance $\beta'$ of the new point, in steps; 0 for none.
        last_lookahead: The distance $\beta$ of `before`; 0 in the first step.
        decay: The share $\gamma$ of the average to keep, in [0, 1].

    Returns:
        The new point $y'$ and the new average $m'$, by name.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or names differ.

    Example:
        >>> import torch
        >>> before, after, average = ({"w": torch.tensor([one])} for one in (2.0, 1.0, 0.0))
        >>> ema_nesterov_step(before, after, average, lookahead=0.5, last_lookahead=0.0, decay=0.5)
        ({'w': tensor([0.7500])}, {'w': tensor([-0.5000])})
    """
    given = as_lists(before=before, after=after, average=average)
    check_range("lookahead", lookahead, -inf, ends="()")
    check_range("last_lookahead", last_lookahead, -inf, ends="()")
    check_range("decay", decay, 0, 1)
    points, means = move_ahead(
        *([tensor.clone() for tensor in tensors] for tensors in given),
        lookahead=lookahead,
        last_lookahead=last_lookahead,
        decay=decay,
    )
    return dict(zip(before, points, strict=True)), dict(zip(before, means, strict=True))


def move_ahead(
    before: list[Tensor],
    after: list[Tensor],
    average: list[Tensor],
    *,
    lookahead: float,
    last_lookahead: float,
    decay: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute the step of `ema_nesterov_step` for lists, which it may overwrite."""

    def averaged(means: list[Tensor], starts: list[Tensor], ends: list[Tensor]) -> list[Tensor]:
        back = foreach_("sub", _like(starts, means), _like(ends, means))  # x - x', from y - x'
        back = foreach_("add", back, means, alpha=-last_lookahead)
        return foreach_("add", foreach_("mul", means, decay), back, alpha=decay - 1)

    def ahead(ends: list[Tensor], means: list[Tensor]) -> list[Tensor]:
        return _like(foreach_("add", _like(ends, means), means, alpha=lookahead), ends)

    means = per_dtype(averaged, average, before, after)
    return per_dtype(ahead, after, means), means


def _like(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return [tensor.to(other.dtype) for tensor, other in zip(tensors, others, strict=True)]
