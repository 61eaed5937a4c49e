r"""Sharpness-aware minimization: take the gradient where the loss is worst nearby.

Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving
Generalization", ICLR 2021, https://arxiv.org/abs/2010.01412
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from ._checks import check_range, check_same_names, check_tensors
from ._multi import global_norm, multi, multi_, per_kind

__all__ = ["sam_perturbation"]


def sam_perturbation(
    params: Mapping[str, Shaped[Tensor, " ..."]],
    grads: Mapping[str, Shaped[Tensor, " ..."] | None],
    *,
    rho: float = 0.05,
    epsilon: float = 1e-12,
) -> dict[str, Shaped[Tensor, " ..."]]:
    r"""Move parameters to where the loss is worst in a ball around them, to first order.

    $$w' = w + \rho \, \frac{g}{\lVert g \rVert + \epsilon}$$

    The norm is the L2 norm over all gradients together. The gradient at $w'$ is the one to train
    on: compute it there, and step from $w$.

    Args:
        params: The parameters $w$, by name.
        grads: Their gradients, by the same names. None, for a parameter without one, leaves it
            where it is.
        rho: The radius of the ball, 0 or more.
        epsilon: Keeps the step finite where all gradients are 0, above 0: there it is 0.

    Returns:
        The moved parameters $w'$ (not the step alone): new tensors by the same names, detached,
        in the dtypes of `params`. The step is computed in float32 at least. Nothing waits for
        the device.

        Where a gradient isn't finite, neither is the result.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes differ, or a number is out of range.

    Example:
        >>> params = {"w": torch.tensor([1.0, 1.0])}
        >>> grads = {"w": torch.tensor([3.0, 4.0])}
        >>> sam_perturbation(params, grads, rho=0.5)
        {'w': tensor([1.3000, 1.4000])}
    """
    check_range("rho", rho, 0, inf, ends="[)")
    check_range("epsilon", epsilon, 0, inf, ends="()")
    check_tensors("params", params)
    present = _present(params, grads)
    new = {name: param.detach().clone() for name, param in params.items() if name not in present}
    if present:
        rows = [params[name].detach() for name in present]
        # Sparse ones, as of embeddings, have no fused norm; the result is dense anyway.
        slopes = [(g.to_dense() if g.is_sparse else g).detach() for g in present.values()]
        scale = rho / (global_norm(slopes) + epsilon)
        moved = per_kind(lambda group, slope: _climb(group, slope, scale), rows, slopes)
        new |= dict(zip(present, moved, strict=True))
    return {name: new[name] for name in params}


def _climb(params: list[Tensor], grads: list[Tensor], scale: Tensor) -> list[Tensor]:
    # In float16 the scale of small gradients would be infinite.
    dtype = torch.promote_types(params[0].dtype, torch.float32)
    slopes = [grad.to(param.device, dtype) for param, grad in zip(params, grads, strict=True)]
    steps = multi("mul", slopes, scale.to(slopes[0]))
    return multi_("add", [step.to(params[0].dtype) for step in steps], params)


def _present(params: Mapping[str, Tensor], grads: Any) -> dict[str, Tensor]:
    """Give the gradients that there are."""
    some = isinstance(grads, Mapping)
    present = {name: g for name, g in grads.items() if g is not None} if some else grads
    check_tensors("grads", present)
    check_same_names("params", params, "grads", grads)
    for name, grad in present.items():
        if grad.shape != params[name].shape:
            raise ValueError(
                f"grads[{name!r}] has shape {tuple(grad.shape)}, but params[{name!r}] has "
                f"{tuple(params[name].shape)}. They must belong to one model."
            )
    return dict(present)
