"""Weight standardization: standardize the weights of each output unit of a convolution.

Qiao, Wang, Liu, Shen and Yuille, "Micro-Batch Training with Batch-Channel Normalization and
Weight Standardization", 2019, https://arxiv.org/abs/1903.10520
"""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.utils import parametrize

from composable._support.checks import check_blendable, check_count, checked
from composable._support.surgery import report_nothing

from ._reclass import reclass, refuse_lazy
from .replace_modules import replace_modules

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
EPSILON = 1e-10


@checked(n_last_layers_ignore=check_count)
def weight_standardization(model: nn.Module, *, n_last_layers_ignore: int = 0) -> nn.Module:
    r"""Standardize the weights of convolutions, in 1 to 3 dimensions, at each use.

    For each output unit $i$, the statistics are over its input channels and its kernel:

    $$\hat W_i = \frac{W_i - \mathrm{mean}(W_i)}{\sqrt{\mathrm{var}(W_i) + 10^{-10}}}$$

    It is a parametrization of `torch.nn.utils.parametrize`. The parameter stays the same, with the
    key `parametrizations.weight.original` instead of `weight` in the state dict.
    `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")` restores a plain
    convolution, with the standardized weight and the old key. If a layer is used several times in
    a step, `with torch.nn.utils.parametrize.cached():` standardizes once.

    Skipped are convolutions with a single weight per unit, which has no variance, transposed
    convolutions, and standardized ones.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        n_last_layers_ignore: Number of convolutions to skip, counted from the last registered one.

    Returns:
        The new model; `model` itself if there is nothing to standardize.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `n_last_layers_ignore` is negative, a convolution is lazy and its channels
            are not known yet, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> model = weight_standardization(nn.Conv2d(3, 8, kernel_size=3))
        >>> model.weight.mean((1, 2, 3)).abs().max() < 1e-6
        tensor(True)
        >>> list(model.state_dict())
        ['bias', 'parametrizations.weight.original']
    """
    names = [name for name, module in model.named_modules() if isinstance(module, CONVS)]
    chosen = set(names[: max(0, len(names) - n_last_layers_ignore)])

    def rule(name: str, module: Any) -> Any:
        refuse_lazy(name, module, CONVS, "weight_standardization")
        if name not in chosen or _is_standardized(module) or module.weight[0].numel() == 1:
            return module
        return _standardized(reclass(module, type(module)))

    result = replace_modules(model, rule)
    if not result.names and not any(map(_is_standardized, model.modules())):
        ignored = f", except for the last {n_last_layers_ignore}" * bool(n_last_layers_ignore)
        report_nothing(
            "weight_standardization",
            f"Conv1d, Conv2d and Conv3d with several weights for each output channel{ignored}",
        )
    return result.model


def standardize_weight(
    weight: Shaped[Tensor, " units *fan_in"],
) -> Shaped[Tensor, " units *fan_in"]:
    """Standardize the weights of each unit; see `weight_standardization`.

    Args:
        weight: Floats, at least two for each unit. The statistics of float16 and bfloat16 weights
            are computed in float32.

    Returns:
        A new tensor of the same shape, dtype and memory format.

    Raises:
        TypeError: `weight` is not a floating-point tensor.

    Example:
        >>> standardize_weight(torch.tensor([[1.0, 3.0], [5.0, 5.0]]))
        tensor([[-1.,  1.],
                [ 0.,  0.]])
    """
    check_blendable("weight", weight)
    exact = weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
    dims = tuple(range(1, weight.ndim))
    var, mean = torch.var_mean(exact, dims, correction=0, keepdim=True)
    return ((exact - mean) * torch.rsqrt(var + EPSILON)).to(weight.dtype)


class StandardizedWeight(nn.Module):
    """`standardize_weight` as a parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return standardize_weight(weight)


def _standardized(conv: nn.Module) -> nn.Module:
    weight = conv._parameters.get("weight")  # None if it is parametrized already
    if weight is not None:  # register_parametrization overwrites it: register a placeholder
        conv.weight = nn.Parameter(torch.empty_like(weight), weight.requires_grad)
    parametrize.register_parametrization(conv, "weight", StandardizedWeight())
    if weight is not None:
        conv.parametrizations.weight.original = weight  # type: ignore[union-attr]
    return conv.train(conv.training)  # the containers of the parametrization too


def _is_standardized(module: nn.Module) -> bool:
    held = getattr(module, "parametrizations", {})
    return "weight" in held and any(isinstance(p, StandardizedWeight) for p in held["weight"])
