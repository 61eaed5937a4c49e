"""Schedule-free learning: an average of the weights takes the place of a learning rate schedule.

Defazio et al., "The Road Less Scheduled", NeurIPS 2024, https://arxiv.org/abs/2405.15682
"""

import torch
from torch import Tensor

from composable._support.checks import check_range, checked, within
from composable._support.foreach import foreach

from ._averages import Floats, as_lists


@checked(lr=within(0, ends="[)"), weight=within(0, 1), momentum=within(0, 1, ends="(]"))
def schedule_free_step(
    training: Floats,
    base: Floats,
    updates: Floats,
    *,
    lr: float,
    weight: float,
    momentum: float = 0.9,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    r"""Compute one step of schedule-free learning around any optimizer.

    With the training weights $y$ (at which gradients are computed), the base weights $z$, and the
    average $x$, of which only two are stored:

    $$z' = z - \gamma u, \qquad x' = (1 - c)\, x + c\, z', \qquad
    y' = (1 - \beta)\, z' + \beta x'$$

    Args:
        training: The training weights $y$ by name.
        base: The base weights $z$ by the same names; before the first step, $z = y$.
        updates: The updates $u$ by the same names: gradients at $y$, or what another optimizer
            makes of them.
        lr: The learning rate $\gamma$, 0 or more.
        weight: The weight $c$ of the new base weights in the average, in [0, 1]: 1 / t in step t
            for a plain mean. With 1, the step equals the base optimizer's.
        momentum: The interpolation $\beta$ between base weights and average, in (0, 1].

    Returns:
        The new training weights and the new base weights, by name.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or names differ.

    Example:
        >>> import torch
        >>> y, z, grads = ({"w": torch.tensor([value])} for value in (1.0, 1.0, 2.0))
        >>> schedule_free_step(y, z, grads, lr=0.25, weight=1.0)
        ({'w': tensor([0.5000])}, {'w': tensor([0.5000])})
    """
    ys, zs, us = as_lists(training=training, base=base, updates=updates)
    if not ys:  # torch raises on empty lists
        return {}, {}
    moved = _lerp(ys, zs, weight)
    moved = foreach("add", moved, us, alpha=lr * (momentum * (1 - weight) - 1))
    stepped = foreach("sub", zs, us, alpha=lr)
    return dict(zip(training, moved, strict=True)), dict(zip(training, stepped, strict=True))


def schedule_free_average(
    training: Floats, base: Floats, *, momentum: float = 0.9
) -> dict[str, Tensor]:
    r"""Compute the average of the weights, with which a schedule-free model is evaluated.

    $$x = z + \frac{y - z}{\beta}$$

    Args:
        training: The training weights $y$ by name.
        base: The base weights $z$ by the same names.
        momentum: The interpolation $\beta$ of the steps, in (0, 1].

    Returns:
        The average $x$ by name.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `momentum` is not in (0, 1], or names differ.

    Example:
        >>> import torch
        >>> y, z = {"w": torch.tensor([1.0])}, {"w": torch.tensor([0.0])}
        >>> schedule_free_average(y, z, momentum=0.5)
        {'w': tensor([2.])}
    """
    ys, zs = as_lists(training=training, base=base)
    check_range("momentum", momentum, 0, 1, ends="(]")
    if not training:
        return {}
    return dict(zip(training, _lerp(ys, zs, 1 - 1 / momentum), strict=True))


def _lerp(ys: list[Tensor], zs: list[Tensor], weight: float) -> list[Tensor]:
    """Interpolate; where that is NaN, as between equal infinities, return the values of `zs`."""
    means = foreach("lerp", ys, zs, float(weight)) if weight else ys
    return [torch.where(mean.isnan(), z, mean) for mean, z in zip(means, zs, strict=True)]
