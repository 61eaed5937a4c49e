"""Sharpness-aware minimization (SAM): take the gradient at the worst-case nearby weights.

Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving
Generalization", ICLR 2021, https://arxiv.org/abs/2010.01412
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_same_names, check_tensors, checked, within
from composable._support.foreach import foreach, foreach_, global_norm, per_dtype


@checked(rho=within(0, ends="[)"), epsilon=within(0, ends="()"))
def sam_perturbation(
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor | None],
    *,
    rho: float = 0.05,
    epsilon: float = 1e-12,
) -> dict[str, Tensor]:
    r"""Perturb parameters to the maximum of the loss within a radius, to first order.

    $$w' = w + \rho \, \frac{g}{\lVert g \rVert + \epsilon}$$

    The norm is the L2 norm of all gradients together. Compute the gradient at $w'$, and update $w$
    with it.

    Args:
        params: The parameters $w$, by name.
        grads: The gradients, by the same names. A parameter whose gradient is None is not
            perturbed.
        rho: Radius of the neighbourhood, 0 or more. At 0 the gradients are not read.
        epsilon: Term added to the norm for numerical stability, above 0. If all gradients are 0,
            so is the perturbation.

    Returns:
        The perturbed parameters $w'$ (not the perturbation): new, detached tensors by the same
        names, in the dtypes of `params`. The perturbation is computed in at least float32, without
        a synchronization with the device.

        Non-finite gradients give non-finite results.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes differ, or a number is out of range.

    Example:
        >>> params = {"w": torch.tensor([1.0, 1.0])}
        >>> grads = {"w": torch.tensor([3.0, 4.0])}
        >>> sam_perturbation(params, grads, rho=0.5)
        {'w': tensor([1.3000, 1.4000])}
    """
    check_tensors("params", params)
    present = _present(params, grads)
    present = present if rho else {}  # a radius of 0 reads no gradient
    new = {name: param.detach().clone() for name, param in params.items() if name not in present}
    if present:
        rows = [params[name].detach() for name in present]
        # There is no fused norm of sparse gradients, and the result is dense anyway.
        slopes = [(g.to_dense() if g.is_sparse else g).detach() for g in present.values()]
        scale = rho / (global_norm(slopes) + epsilon)
        moved = per_dtype(lambda group, slope: _perturb(group, slope, scale), rows, slopes)
        new |= dict(zip(present, moved, strict=True))
    return {name: new[name] for name in params}


def _perturb(params: list[Tensor], grads: list[Tensor], scale: Tensor) -> list[Tensor]:
    # In float16 the scale of small gradients can overflow.
    dtype = torch.promote_types(params[0].dtype, torch.float32)
    slopes = [grad.to(param.device, dtype) for param, grad in zip(params, grads, strict=True)]
    steps = foreach("mul", slopes, scale.to(slopes[0]))
    return foreach_("add", [step.to(params[0].dtype) for step in steps], params)


def _present(params: Mapping[str, Tensor], grads: Any) -> dict[str, Tensor]:
    """Return the gradients that are not None."""
    some = isinstance(grads, Mapping)
    present = {name: g for name, g in grads.items() if g is not None} if some else grads
    check_tensors("grads", present)
    check_same_names("params", params, "grads", grads)
    for name, grad in present.items():
        if grad.shape != params[name].shape:
            raise ValueError(
                f"grads[{name!r}] has shape {tuple(grad.shape)}, but params[{name!r}] has "
                f"{tuple(params[name].shape)}; pass tensors of one model."
            )
    return dict(present)
