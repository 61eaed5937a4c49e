"""Loss scaling: the arithmetic of mixed-precision training in float16.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, https://arxiv.org/abs/1710.03740.
The results are bit-identical to `torch.amp.GradScaler`'s.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from composable._support.checks import (
    check_count,
    check_flag,
    check_range,
    check_tensor,
    kind_of,
)


def unscale_(gradients: Iterable[Tensor], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Divide gradients by the loss scale in place, and return whether one is not finite.

    Args:
        gradients: Gradients of the scaled loss, of any shapes, on any devices.
        scale: The loss scale, in float32.

    Returns:
        1.0 if a value is infinite or NaN, else 0.0, on the device of `scale`, without waiting for
        it.

    Example:
        >>> from composable.optim.loss_scaling import unscale_
        >>> gradient = torch.tensor([8.0, 16.0])
        >>> unscale_([gradient], torch.tensor(8.0))
        tensor(0.)
        >>> gradient
        tensor([1., 2.])
    """
    check_tensor("scale", scale)
    # The inverse in float64, as in GradScaler: the hardware's float32 division may be inexact.
    inverse = scale.double().reciprocal().float()
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if not isinstance(gradient, Tensor):
            raise TypeError(f"gradients must be tensors, not {kind_of(gradient)}.")
        values = _values(gradient)
        groups.setdefault((values.device, values.dtype), []).append(values)
    found = torch.zeros_like(scale)
    for (device, _), tensors in groups.items():
        here = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, here, inverse.to(device))
        found = torch.maximum(found, here.to(found.device))
    return found


def _values(gradient: Tensor) -> Tensor:
    """Return the values of a gradient, which may be sparse."""
    if not gradient.is_sparse:
        return gradient
    if gradient.dtype is torch.float16 and not gradient.is_coalesced():
        # The sum of several entries of one index may overflow where none of them does.
        coalesced = gradient.coalesce()
        gradient.copy_(coalesced)
    return gradient._values()


def update_scale(
    scale: Float[Tensor, ""],
    streak: int,
    *,
    overflow: bool,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> tuple[Float[Tensor, ""], int]:
    """Return the loss scale of the next step, and the number of steps since its last change.

    Args:
        scale: The loss scale of this step, in float32.
        streak: The number of steps without overflow since the scale changed, before this one.
        overflow: Whether a gradient of this step was not finite.
        growth_factor: Multiplies the scale after `growth_interval` steps; above 1.
        backoff_factor: Multiplies the scale after an overflow; between 0 and 1.
        growth_interval: The number of steps without overflow before the scale grows.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> from composable.optim.loss_scaling import update_scale
        >>> update_scale(torch.tensor(8.0), 5, overflow=True)
        (tensor(4.), 0)
        >>> update_scale(torch.tensor(8.0), 5, overflow=False)
        (tensor(8.), 6)
    """
    check_tensor("scale", scale)
    check_count("streak", streak)
    check_flag("overflow", overflow)
    check_range("growth_factor", growth_factor, 1, ends="()")
    check_range("backoff_factor", backoff_factor, 0, 1, ends="()")
    check_count("growth_interval", growth_interval, 1)
    if overflow:
        return _times(scale, backoff_factor), 0
    if streak + 1 < growth_interval:
        return scale, streak + 1
    grown = _times(scale, growth_factor)
    return (grown if grown.isfinite() else scale), 0


def _times(scale: Tensor, factor: float) -> Tensor:
    return (scale.double() * factor).to(scale.dtype)
