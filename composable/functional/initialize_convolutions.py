"""Dirac initialization: convolutions that start by copying their inputs.

Zagoruyko and Komodakis, "DiracNets: Training Very Deep Neural Networks Without Skip-Connections",
2017, https://arxiv.org/abs/1706.00388; beside filters that stay random: Jordan, "94% on CIFAR-10 in
3.29 Seconds on a Single GPU", 2024, https://arxiv.org/abs/2404.00498
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from composable._support.checks import check_module
from composable._support.surgery import check_uncompiled, report_nothing, with_tensors


def initialize_convolutions(model: nn.Module) -> nn.Module:
    """Let the first filters of each convolution copy its inputs; all others stay as they are.

    Filter $i$ of a convolution with $n$ inputs has the weight 1 at the center of input $i$, and
    otherwise 0, for $i < n$. In each group of a grouped convolution the same holds.

    It changes each `nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d` whose kernel has a center, and is not
    a single pixel: all sides are odd, and one is above 1. Frozen weights and biases stay.

    Args:
        model: Any module. It is not modified. The result shares all other parameters.

    Returns:
        The new model, with new parameters in place of the weights of these convolutions.

    Raises:
        TypeError: `model` is not a module.
        ValueError: A weight is computed by a parametrization, has no values yet, or belongs to a
            compiled module.

    Warns:
        NoEffectWarning: The model has no such convolution, or all are frozen.

    Example:
        >>> conv = initialize_convolutions(nn.Conv2d(3, 8, 3, padding=1, bias=False))
        >>> images = torch.randn(2, 3, 5, 5)
        >>> torch.equal(conv(images)[:, :3], images)
        True
    """
    check_module("model", model)
    found = {n: module for n, module in model.named_modules() if _has_center(module)}
    check_uncompiled(model, [*found])
    copying = {f"{name}.weight".lstrip("."): _copying(name, value) for name, value in found.items()}
    weights = {name: weight for name, weight in copying.items() if weight is not None}
    if not weights:
        kinds = "Conv1d, Conv2d and Conv3d with odd kernels that are trained"
        report_nothing("initialize_convolutions", kinds)
        return model
    return with_tensors(model, weights)


def _has_center(module: nn.Module) -> bool:
    """Return whether a module is a convolution that can copy a pixel and sees others."""
    if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return False
    return all(side % 2 for side in module.kernel_size) and max(module.kernel_size) > 1


def _copying(name: str, conv: Any) -> Tensor | None:
    """Return the weight whose first filters copy the inputs, or None if it is frozen."""
    if "weight" not in conv._parameters or is_lazy(conv.weight) or conv.weight.is_meta:
        raise ValueError(
            f"the weight of the convolution {name or 'model'} is computed by a parametrization or "
            "has no values yet: initialize it before other surgery and on its device, and call a "
            "lazy model once."
        )
    if not conv.weight.requires_grad:
        return None
    weight: Tensor = conv.weight.detach().clone()
    groups = weight.reshape(conv.groups, -1, *weight.shape[1:])  # a view, in any layout
    count = min(groups.shape[1:3])
    groups[:, :count] = 0
    channels = torch.arange(count, device=weight.device)
    centers: tuple[Any, ...] = (slice(None), channels, channels)
    groups[centers + tuple(side // 2 for side in conv.kernel_size)] = 1
    return weight
