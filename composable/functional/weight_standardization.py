"""Weight standardization: give every unit of a convolution weights of mean 0 and variance 1.

Qiao, Wang, Liu, Shen and Yuille, "Micro-Batch Training with Batch-Channel Normalization and
Weight Standardization", 2019, https://arxiv.org/abs/1903.10520
"""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ._checks import check_blendable, check_count, check_module
from ._surgery import replace_modules, report_nothing
from ._take_over import refuse_lazy, take_over

__all__ = ["StandardizedWeight", "standardize_weight", "weight_standardization"]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
EPSILON = 1e-10


def weight_standardization(model: nn.Module, *, n_last_layers_ignore: int = 0) -> nn.Module:
    r"""Standardize the weights of convolutions, in 1 to 3 dimensions, each time they are used.

    For each output unit $i$, over its input channels and its kernel:

    $$\hat W_i = \frac{W_i - \mathrm{mean}(W_i)}{\sqrt{\mathrm{var}(W_i) + 10^{-10}}}$$

    It is one of torch's parametrizations. The parameter is the very one that was there, trained
    as before, and in the state dict it is called `parametrizations.weight.original` instead of
    `weight`. `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")` leaves a plain
    convolution with the standardized weight and the old key. Where a layer is used several times
    in a step, `with torch.nn.utils.parametrize.cached():` standardizes once.

    What stays as it was: convolutions whose units have a single weight (1 × 1 and depthwise),
    which has no variance, transposed convolutions, and convolutions that are standardized already,
    so twice is once.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        n_last_layers_ignore: How many of the last convolutions stay, in the order in which the
            modules were registered.

    Returns:
        The new model; `model` itself where there was nothing to standardize.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `n_last_layers_ignore` is negative, a convolution is lazy and does not know
            its channels yet, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> model = weight_standardization(nn.Conv2d(3, 8, kernel_size=3))
        >>> model.weight.mean((1, 2, 3)).abs().max() < 1e-6
        tensor(True)
        >>> list(model.state_dict())
        ['bias', 'parametrizations.weight.original']
    """
    check_module("model", model)
    check_count("n_last_layers_ignore", n_last_layers_ignore)
    names = [name for name, module in model.named_modules() if isinstance(module, CONVS)]
    chosen = set(names[: max(0, len(names) - n_last_layers_ignore)])

    def rule(name: str, module: Any) -> Any:
        refuse_lazy(name, module, CONVS, "weight_standardization")
        if name not in chosen or _is_standardized(module) or module.weight[0].numel() == 1:
            return module
        return _standardized(take_over(module, type(module)))

    new, count = replace_modules(model, rule)
    if count == 0 and not any(map(_is_standardized, model.modules())):
        ignored = f", but for the last {n_last_layers_ignore}" * bool(n_last_layers_ignore)
        report_nothing(
            "weight_standardization",
            f"Conv1d, Conv2d and Conv3d with several weights for each output channel{ignored}",
        )
    return new


def standardize_weight(
    weight: Shaped[Tensor, " units *fan_in"],
) -> Shaped[Tensor, " units *fan_in"]:
    """Give every unit's weights mean 0 and variance 1; see `weight_standardization`.

    Args:
        weight: Floats; two or more for each unit. Of float16 and bfloat16 the statistics are
            taken in float32.

    Returns:
        A new tensor of the same shape, dtype and layout.

    Raises:
        TypeError: `weight` is no tensor of floats.

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
    """`standardize_weight` as one of torch's parametrizations."""

    def forward(self, weight: Tensor) -> Tensor:
        return standardize_weight(weight)


def _standardized(conv: nn.Module) -> nn.Module:
    weight = conv._parameters.get("weight")  # None where it is parametrized already
    if weight is not None:  # torch writes to the parameter that it finds: to a stand-in
        conv.weight = nn.Parameter(torch.empty_like(weight), weight.requires_grad)
    parametrize.register_parametrization(conv, "weight", StandardizedWeight())
    if weight is not None:
        conv.parametrizations.weight.original = weight  # type: ignore[union-attr]
    return conv


def _is_standardized(module: nn.Module) -> bool:
    held = getattr(module, "parametrizations", {})
    return "weight" in held and any(isinstance(p, StandardizedWeight) for p in held["weight"])
