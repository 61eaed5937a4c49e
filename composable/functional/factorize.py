"""Factorization: replace wide layers by low-rank pairs of layers.

The fit follows Eckart and Young, "The approximation of one matrix by another of lower rank",
Psychometrika 1936, https://doi.org/10.1007/BF02288367. Convolutions as in Zhang, Zou, He and Sun,
"Accelerating Very Deep Convolutional Networks for Classification and Detection", 2015,
https://arxiv.org/abs/1505.06798
"""

from collections import Counter
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import (
    check_any,
    check_count,
    check_flag,
    check_one_of,
    check_range,
    checked,
)

from ._reclass import refuse_lazy
from .layers.factorized import (
    CONVS,
    LINEARS,
    FactorizedLayer,
    build_pair,
    groups_of,
    matrices_of,
    merge_pair,
)
from .replace_modules import replace_or_report

__all__ = ["factorize"]

INITS = ("svd", "randomized", "random")


def _check_latent_size(name: str, value: Any) -> None:
    """Raise an error unless the value is a count of latent units, or a share of all units."""
    advice = "an integer is a count, a number below 1 a share of the inputs or outputs"
    if isinstance(value, Integral):
        check_count(name, value, 1, advice=advice)
    else:
        check_range(name, value, 0, 1, ends="()", advice=advice)


@checked(
    factorize_convs=check_flag,
    factorize_linears=check_flag,
    min_channels=check_count,
    latent_channels=_check_latent_size,
    min_features=check_count,
    latent_features=_check_latent_size,
    init=partial(check_one_of, allowed=INITS),
)
def factorize(  # noqa: PLR0913
    model: nn.Module,
    *,
    factorize_convs: bool = True,
    factorize_linears: bool = True,
    min_channels: int = 512,
    latent_channels: int | float = 0.25,
    min_features: int = 512,
    latent_features: int | float = 0.25,
    init: str = "svd",
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Replace wide convolutions and linear layers by low-rank pairs if that saves computation.

    A weight $W$, as a matrix with a row for each of its $b$ outputs and $a$ columns (inputs times
    the size of the kernel), is replaced by its best approximation of rank $k$. With the singular
    value decomposition $W = U S V^\top$, truncated to the $k$ largest singular values,

    $$A = V_k^\top, \quad B = U_k S_k, \quad \lVert W - B A \rVert_F^2 = \sum_{i > k} s_i^2$$

    A layer is replaced only if the pair takes fewer multiply-adds per position, $k (a + b) < a b$.
    The first layer of the pair, `reduce`, has the options of the old layer, and no bias. The
    second, `expand`, has a kernel of size 1 and the old bias. Each group is factorized separately,
    with its share of the latent size, rounded down to at least 1.

    `<layer>.reduce.weight` and `<layer>.expand.weight` are new parameters; `layer.weight` is their
    product. Dtype, device, memory format, mode, hooks and `requires_grad` don't change. The
    decomposition runs on the CPU, in float32 (or float64 for float64 weights), with fixed signs, so
    it is the same for all devices.

    Skipped are weights that several layers share, such as an output layer tied to an embedding;
    layers with a parametrization, a mask or additional tensors, and subclasses of the layers of
    PyTorch, which may compute more than the product; the output projection of
    `nn.MultiheadAttention`, whose weight is read without a call; and transposed convolutions. A
    pair is replaced by one of a lower rank, if that is requested, and is otherwise skipped.

    Args:
        model: Any module. It is not modified. The result shares its other parameters.
        factorize_convs: Replace `Conv1d`, `Conv2d` and `Conv3d`.
        factorize_linears: Replace `Linear`.
        min_channels: Minimum number of input and output channels of a convolution to replace.
        latent_channels: $k$ for convolutions: an integer, or a share below 1 of the input or output
            channels, whichever are fewer, rounded down to at least 1.
        min_features: Minimum number of input and output features of a linear layer to replace.
        latent_features: $k$ for linear layers: an integer, or a share below 1 of the input or
            output features, whichever are fewer, rounded down to at least 1.
        init: "svd" for the best approximation; "randomized" for nearly the best one, by a
            randomized decomposition with a fixed seed, which is several times as fast for large
            layers; or "random" to draw new weights, as new layers of PyTorch do.
        generator: Random number generator of "random". Default: torch's global generator.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Both `factorize_convs` and `factorize_linears` are False, a number is out of
            range, a weight is not finite, a layer is lazy and its inputs are not known yet, or the
            model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> model = factorize(nn.Linear(512, 1024))
        >>> model
        FactorizedLayer(
          (reduce): Linear(in_features=512, out_features=128, bias=False)
          (expand): Linear(in_features=128, out_features=1024, bias=True)
        )
        >>> sum(p.numel() for p in model.parameters()) / (512 * 1024 + 1024)
        0.376...
    """
    check_any("factorize_convs", factorize_convs, "factorize_linears", factorize_linears)
    kinds = CONVS * factorize_convs + LINEARS * factorize_linears
    skipped, shared = _skipped_layers(model), _shared_parameters(model)

    def rule(name: str, module: Any) -> nn.Module:
        refuse_lazy(name, module, kinds, "factorize")
        pair = isinstance(module, FactorizedLayer)
        first, last = (module.reduce, module.expand) if pair else (module, module)
        if name in skipped or not all(
            type(layer) in kinds and _is_plain(layer, shared) for layer in (first, last)
        ):
            return module  # type: ignore[no-any-return]
        if isinstance(first, LINEARS):
            least, latent = min_features, latent_features
            size = first.in_features, last.out_features
        else:
            least, latent = min_channels, latent_channels
            size = first.in_channels, last.out_channels
        units, groups = int(latent if latent >= 1 else latent * min(size)), groups_of(first)
        rank = max(1, units // groups)
        _, outputs, inputs = matrices_of(first.weight, groups).shape
        # A pair becomes a cheaper one with any lower rank.
        cheaper = rank < outputs if pair else rank * (inputs + outputs) < inputs * outputs
        if min(size) < least or not cheaper:
            return module  # type: ignore[no-any-return]
        if init != "random":
            for layer in (first, last):
                check_values(name, layer.weight)
        return build_pair(merge_pair(module) if pair else module, rank, init, generator)

    convs = f"Conv1d, Conv2d and Conv3d with at least {min_channels} input and output channels"
    linears = f"Linear with at least {min_features} input and output features"
    sought = " or ".join([convs] * factorize_convs + [linears] * factorize_linears)
    sought += ", for which a pair of layers is cheaper"
    return replace_or_report(model, rule, FactorizedLayer, "factorize", sought)


def _skipped_layers(model: nn.Module) -> set[str]:
    """Return the names of layers whose weight is read without a call, or that form a pair."""
    found = set()
    for parent in model.modules():
        if isinstance(parent, nn.MultiheadAttention):
            found.add(id(parent.out_proj))
        elif isinstance(parent, FactorizedLayer):
            found |= {id(parent.reduce), id(parent.expand)}
    return {name for name, module in model.named_modules() if id(module) in found}


def _shared_parameters(model: nn.Module) -> set[int]:
    held = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    return {key for key, count in held.items() if count > 1}


def _is_plain(module: nn.Module, shared: set[int]) -> bool:
    """Return whether a layer has an unshared weight and a bias, and no other tensors."""
    weight = module._parameters.get("weight")
    if weight is None or not weight.is_floating_point() or id(weight) in shared:
        return False
    more = module._parameters.keys() - {"weight", "bias"}
    return not (more or module._buffers or module._modules or "forward" in vars(module))


def check_values(name: str, weight: Tensor) -> None:
    path = f"{name}.weight".lstrip(".")
    if weight.is_meta:
        raise ValueError(
            f"{path} must have values, to fit a pair of layers to, not be on the meta device; load "
            "or initialize the model before factorize."
        )
    if not weight.isfinite().all():
        raise ValueError(
            f"{path} must be finite, to fit a pair of layers to; load or initialize the model "
            "before factorize."
        )
