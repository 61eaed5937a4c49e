"""Factorization: let a pair of thin layers do the work of a wide one.

The fit is that of Eckart and Young, "The approximation of one matrix by another of lower rank",
Psychometrika 1936, https://doi.org/10.1007/BF02288367. Convolutions as in Zhang, Zou, He and Sun,
"Accelerating Very Deep Convolutional Networks for Classification and Detection", 2015,
https://arxiv.org/abs/1505.06798
"""

from collections import Counter
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ._checks import check_count, check_flag, check_module, check_range
from ._multi import accurate
from ._surgery import replace_modules, report_nothing
from ._take_over import refuse_lazy

__all__ = ["FactorizedLayer", "factorize"]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEARS = (nn.Linear, NonDynamicallyQuantizableLinear)
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def factorize(
    model: nn.Module,
    *,
    factorize_convs: bool = True,
    factorize_linears: bool = True,
    min_channels: int = 512,
    latent_channels: int | float = 0.25,
    min_features: int = 512,
    latent_features: int | float = 0.25,
) -> nn.Module:
    r"""Replace wide convolutions and linear layers by pairs of thin ones, where that saves work.

    A weight $W$, as a matrix with a row for each of its $b$ outputs and $a$ columns (inputs, times
    the size of the kernel), becomes $B A$ with $k$ rows in $A$. It is the best fit of that rank:
    with the singular value decomposition $W = U S V^\top$, cut off after the $k$ largest singular
    values,

    $$A = V_k^\top, \quad B = U_k S_k, \quad \lVert W - B A \rVert_F^2 = \sum_{i > k} s_i^2$$

    For each output the layer takes $a b$ multiply-adds and the pair $k (a + b)$. A layer is
    replaced only where that is less. The first of the pair, `reduce`, has the kernel, stride,
    padding, dilation and groups of the old layer and no bias; the second, `expand`, has a kernel
    of size 1 and the old bias. Each of several groups is a matrix by itself, with its part of the
    latent size, rounded down to 1 or more.

    The weights are new, in the state dict `<layer>.reduce.weight` and `<layer>.expand.weight`;
    the bias, `<layer>.expand.bias`, is the very one that was there. Dtype, device, memory layout,
    mode, hooks and `requires_grad` stay. The decomposition runs on the CPU, in float32 (float64
    for such weights), with fixed signs, so nothing is drawn and devices agree. `layer.weight`
    still is a weight, the product of the pair, for whoever reads it.

    What stays as it was: layers that a pair would not make cheaper, depthwise convolutions among
    them; weights that several layers share, such as an output layer's with the embedding, which
    would come apart; layers with a parametrization, a mask or another tensor of their own, and
    subclasses of torch's layers, which may do more than the product; the output projection of
    `nn.MultiheadAttention`, which is read and never called; transposed convolutions; and the pairs
    themselves, so twice is once.

    Args:
        model: Any module; it is left as it was. The result shares its other parameters.
        factorize_convs: Replace `Conv1d`, `Conv2d` and `Conv3d`.
        factorize_linears: Replace `Linear`.
        min_channels: Convolutions with fewer input or output channels stay.
        latent_channels: $k$ for convolutions: a whole number, or below 1 a share of the input or
            output channels, whichever are fewer, rounded down to 1 or more.
        min_features: Linear layers with fewer input or output features stay.
        latent_features: $k$ for linear layers, likewise.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Neither kind is to be replaced, a number is out of its range, a weight is not
            finite, a layer is lazy and does not know its inputs yet, or the model is wrapped for
            distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

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
    check_module("model", model)
    check_flag("factorize_convs", factorize_convs)
    check_flag("factorize_linears", factorize_linears)
    if not (factorize_convs or factorize_linears):
        raise ValueError(
            "factorize_convs and factorize_linears are both False: nothing is left to replace."
        )
    check_count("min_channels", min_channels)
    _check_latent("latent_channels", latent_channels)
    check_count("min_features", min_features)
    _check_latent("latent_features", latent_features)
    kinds = CONVS * factorize_convs + LINEARS * factorize_linears
    stays, shared = _spoken_for(model), _in_several_layers(model)

    def rule(name: str, module: Any) -> nn.Module:
        refuse_lazy(name, module, kinds, "factorize")
        if type(module) not in kinds or name in stays or not _has_its_own_weight(module, shared):
            return module  # type: ignore[no-any-return]
        if isinstance(module, LINEARS):
            least, latent = min_features, latent_features
            size = module.in_features, module.out_features
        else:
            least, latent = min_channels, latent_channels
            size = module.in_channels, module.out_channels
        whole = int(latent if latent >= 1 else latent * min(size))
        rank = max(1, whole // _groups(module))
        _, outputs, inputs = _matrices(module.weight, _groups(module)).shape
        if min(size) < least or rank * (inputs + outputs) >= inputs * outputs:
            return module  # type: ignore[no-any-return]
        return _factorized(name, module, rank)

    new, count = replace_modules(model, rule)
    if count == 0 and not any(isinstance(module, FactorizedLayer) for module in model.modules()):
        convs = f"Conv1d, Conv2d and Conv3d with at least {min_channels} input and output channels"
        linears = f"Linear with at least {min_features} input and output features"
        sought = " or ".join([convs] * factorize_convs + [linears] * factorize_linears)
        report_nothing("factorize", f"{sought}, where a pair of layers would be cheaper")
    return new


class FactorizedLayer(nn.Module):
    """Two layers, of which the first has few outputs, in the place of one; see `factorize`.

    Args:
        reduce: A linear layer or a convolution, without a bias.
        expand: A linear layer, or a convolution with a kernel of size 1 and as many groups.

    Example:
        >>> layer = FactorizedLayer(nn.Linear(64, 4, bias=False), nn.Linear(4, 32))
        >>> x = torch.rand(2, 64)
        >>> torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-5)
        True
    """

    def __init__(self, reduce: nn.Module, expand: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand = reduce, expand

    def forward(self, inputs: Shaped[Tensor, " *inputs"]) -> Shaped[Tensor, " *outputs"]:
        """Give the outputs of the second layer."""
        outputs: Tensor = self.expand(self.reduce(inputs))
        return outputs

    @property
    def weight(self) -> Float[Tensor, " *weight"]:
        """The weight of one layer that computes the same: the product of the pair's."""
        first, second, groups = self.reduce.weight, self.expand.weight, _groups(self.reduce)
        product = _matrices(second, groups) @ _matrices(first, groups)  # type: ignore[arg-type]
        return product.reshape(-1, *first.shape[1:])  # type: ignore[index]

    @property
    def bias(self) -> Tensor | None:
        """The bias of the second layer."""
        bias: Tensor | None = self.expand.bias  # type: ignore[assignment]
        return bias


def _spoken_for(model: nn.Module) -> set[str]:
    """Name the layers that are read and never called, and those that are of a pair already."""
    found = set()
    for parent in model.modules():
        if isinstance(parent, nn.MultiheadAttention):
            found.add(id(parent.out_proj))
        elif isinstance(parent, FactorizedLayer):
            found |= {id(parent.reduce), id(parent.expand)}
    return {name for name, module in model.named_modules() if id(module) in found}


def _in_several_layers(model: nn.Module) -> set[int]:
    held = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    return {key for key, count in held.items() if count > 1}


def _has_its_own_weight(module: nn.Module, shared: set[int]) -> bool:
    """Say whether a layer is its weight and its bias, and nothing besides."""
    weight = module._parameters.get("weight")
    if weight is None or not weight.is_floating_point() or id(weight) in shared:
        return False
    more = module._parameters.keys() - {"weight", "bias"}
    return not (more or module._buffers or module._modules or "forward" in vars(module))


def _groups(module: Any) -> int:
    return getattr(module, "groups", 1)


def _matrices(weight: Tensor, groups: int) -> Float[Tensor, "groups outputs inputs"]:
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1:].numel())


def _factorized(name: str, module: Any, rank: int) -> nn.Module:
    weight, groups = module.weight, _groups(module)
    if weight.is_meta:
        raise ValueError(
            f"{f'{name}.weight'.lstrip('.')} is on the meta device and has no values, to which a "
            "pair could be fitted. Load the model, or initialise it on a device, before factorize."
        )
    if not weight.isfinite().all():
        raise ValueError(
            f"{f'{name}.weight'.lstrip('.')} has values that are not finite, to which nothing can "
            "be fitted. Initialise it, or load it, before factorize."
        )
    layers = (
        _thin_linears(module, rank) if isinstance(module, LINEARS) else _thin_convs(module, rank)
    )
    last = LAYOUTS.get(weight.ndim, torch.contiguous_format)
    plain = weight.is_contiguous() or not weight.is_contiguous(memory_format=last)
    layout = torch.contiguous_format if plain else last
    for layer, fitted in zip(layers, _fit(_matrices(weight.detach(), groups), rank), strict=True):
        values = fitted.reshape(layer.weight.shape).to(weight.device, weight.dtype)
        values = values.contiguous(memory_format=layout)
        layer.weight = nn.Parameter(values, requires_grad=weight.requires_grad)
        layer.train(module.training)
    reduce, expand = layers
    expand.bias = module.bias
    new = FactorizedLayer(reduce, expand)
    tensors = ("_parameters", "_buffers", "_modules")
    new.__dict__.update({key: value for key, value in vars(module).items() if key not in tensors})
    return new


def _thin_linears(old: Any, rank: int) -> tuple[Any, Any]:
    # On the meta device nothing is drawn: their weights come from the fit.
    reduce = nn.Linear(old.in_features, rank, bias=False, device="meta")
    return reduce, nn.Linear(rank, old.out_features, bias=False, device="meta")


def _thin_convs(old: Any, rank: int) -> tuple[Any, Any]:
    latent, options = rank * old.groups, {"groups": old.groups, "bias": False, "device": "meta"}
    reduce = type(old)(
        old.in_channels,
        latent,
        old.kernel_size,
        old.stride,
        old.padding,
        old.dilation,
        padding_mode=old.padding_mode,
        **options,
    )
    return reduce, type(old)(latent, old.out_channels, 1, **options)


def _fit(
    matrices: Float[Tensor, "groups outputs inputs"], rank: int
) -> tuple[Float[Tensor, "groups {rank} inputs"], Float[Tensor, "groups outputs {rank}"]]:
    exact = matrices.to("cpu", accurate(matrices.dtype))
    u, s, vh = torch.linalg.svd(exact, full_matrices=False)
    u, s, v = (part[..., :rank] for part in (u, s, vh.mT))
    # Both vectors of a pair may change sign: the largest entry of the first is positive.
    sign = u.gather(1, u.abs().argmax(1, keepdim=True)).sign()
    # The singular values go to the second layer: were they split, a weight of zeros, as many
    # residual branches begin with, would give a pair of zeros, which no gradient ever moves.
    return (v * sign).mT, u * sign * s.unsqueeze(1)


def _check_latent(name: str, value: Any) -> None:
    advice = "A whole number counts; a number below 1 is a share of the inputs or outputs."
    if isinstance(value, Integral):
        check_count(name, value, 1, advice=advice)
    else:
        check_range(name, value, 0, 1, ends="()", advice=advice)
