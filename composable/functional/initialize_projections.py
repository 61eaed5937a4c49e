"""Initialization of projections: residual blocks that start at or near zero.

Zero: Zhang, Dauphin and Ma, "Fixup Initialization: Residual Learning Without Normalization", ICLR
2019, https://arxiv.org/abs/1901.09321; last norms: Goyal et al., "Accurate, Large Minibatch SGD",
2017, https://arxiv.org/abs/1706.02677; mimetic: Trockman and Kolter, "Mimetic Initialization of
Self-Attention Layers", ICML 2023, https://arxiv.org/abs/2305.09828
"""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_one_of, checked, within
from composable._support.devices import generator_device
from composable._support.surgery import report_nothing, with_tensors

from .projections import ADVICE, REGISTRY, Projections, find_projections, is_transposed

ATTENTION, FEED_FORWARD = ("zero", "fan_in", "mimetic", "keep"), ("zero", "fan_in", "keep")


@checked(
    attention=partial(check_one_of, allowed=ATTENTION),
    feed_forward=partial(check_one_of, allowed=FEED_FORWARD),
    scale=within(0, ends="[)"),
    beta=within(0, ends="[)"),
    noise=within(0, ends="[)"),
)
def initialize_projections(
    model: nn.Module,
    *,
    attention: str = "zero",
    feed_forward: str = "zero",
    scale: float = 0.5,
    beta: float = 0.05,
    noise: float = 0.01,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Initialize the output projections of attention, of feed-forward and convolutional blocks.

    - "zero": $W = 0$, so that each block starts as the identity of the residual stream;
    - "fan_in": $W_{ij} \sim \mathcal{N}(0, s^2 / n)$ for $n$ inputs, with the `scale` $s$;
    - "mimetic": the projection of the values and the output projection of attention start near a
      product of $-\beta I$, as in trained models: with $Z_{ij} \sim \mathcal{N}(0, \sigma^2)$,

    $$W_V = \sqrt{\beta} I + Z, \quad W_O = -\sqrt{\beta} I + Z'$$

    - "keep": no change.

    Biases of these projections start at zero. A block whose projection is frozen stays. The output
    of a block of a residual network is its last norm, whose weight starts at 0 or stays. With
    grouped queries, $I$ in $W_O$ belongs to the values of each group, which its heads share.
    `register_projections` lists the known blocks, and adds others.

    Args:
        model: Any module. It is not modified. The result shares all other parameters.
        attention: "zero", "fan_in", "mimetic" or "keep".
        feed_forward: "zero", "fan_in" or "keep", of feed-forward and convolutional blocks.
        scale: Scale $s$ of "fan_in", 0 or more.
        beta: Strength $\beta$ of "mimetic", 0 or more.
        noise: Standard deviation $\sigma$ of "mimetic", 0 or more.
        generator: Random number generator of the new weights. Default: torch's global generator.

    Returns:
        The new model, with new parameters in place of the initialized ones.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An option does not exist, a number is out of range, a known block lacks a
            projection, it doesn't fit "mimetic" or "fan_in", or it is on the meta device or
            computed by a parametrization.

    Warns:
        NoEffectWarning: The model has no such block, or all are frozen.

    Example:
        >>> model = initialize_projections(nn.TransformerEncoderLayer(4, 2, 8))
        >>> model.self_attn.out_proj.weight.abs().sum().item()
        0.0
    """

    def drawn(like: Tensor, std: float) -> Tensor:
        device = generator_device(generator)
        return std * torch.randn(like.shape, device=device, generator=generator)

    tensors: dict[str, Tensor] = {}
    for path, block, parts in find_projections(model):
        method = feed_forward if parts.value is None else attention
        crosses = method == "mimetic" and getattr(block, "is_cross_attention", False)
        if method == "keep" or parts.output is None or crosses:
            continue
        layer, name = _layer(parts.output, block), parts.output
        if not layer.weight.requires_grad:
            continue  # it would stay at zero
        new = {f"{name}.bias": torch.zeros_like(layer.bias)} if layer.bias is not None else {}
        if method == "mimetic":
            new |= _mimetic(block, parts, beta, partial(drawn, std=noise))
        elif method == "zero":
            new[f"{name}.weight"] = torch.zeros_like(layer.weight)
        else:
            std = scale / sqrt(_inputs(layer, name, block))
            new[f"{name}.weight"] = drawn(layer.weight, std)
        tensors |= {f"{path}.{at}".lstrip("."): tensor for at, tensor in new.items()}
    if tensors:
        return with_tensors(model, tensors)
    if attention != "keep" or feed_forward != "keep":
        report_nothing("initialize_projections", f"blocks of the classes {REGISTRY.names}", ADVICE)
    return model


def _mimetic(
    block: Any, parts: Projections, beta: float, noise: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return weights of the values and the output of attention, by their names in the block."""
    weight, bias = _names_of_values(block, parts)
    known = dict(block.named_parameters())
    if weight not in known:
        raise ValueError(f"{type(block).__name__} has no {weight} to initialize as 'mimetic'.")
    layer, output = block.get_submodule(weight.rpartition(".")[0]), _layer(str(parts.output), block)
    made, back = _rows(layer, known[weight]).clone(), _rows(output, output.weight)
    values = made[2 * len(made) // 3 :] if parts.fused else made
    (width, inputs), repeats = back.shape, back.shape[1] // len(values)
    size = len(values) if repeats == 1 else getattr(block, "head_dim", 0)
    if values.shape[1] != width or inputs != repeats * len(values) or not size:
        raise ValueError(
            f"attention='mimetic' does not fit {type(block).__name__}, with values of shape "
            f"{tuple(values.shape)} and an output projection of shape {tuple(back.shape)}; pass "
            "'zero', 'fan_in' or 'keep'."
        )
    identity = torch.eye(len(values), width) * sqrt(beta)
    heads = identity.reshape(-1, size, width)
    shared = heads.repeat_interleave(repeats, 0).flatten(0, 1) / repeats  # by the heads of a group
    around = noise(values)
    values.copy_(around.add_(identity.to(around.device)))
    back = noise(back)
    back = back.sub_(shared.T.to(back.device))
    result = {weight: _rows(layer, made), f"{parts.output}.weight": _rows(output, back)}
    if bias in known:
        old = known[bias].detach()
        kept = 2 * len(old) // 3 if parts.fused else 0
        result[bias] = torch.cat([old[:kept], torch.zeros_like(old[kept:])])
    return result


def _names_of_values(block: nn.Module, parts: Projections) -> tuple[str, str]:
    """Return the names of the weight and the bias that make the values."""
    if isinstance(block, nn.MultiheadAttention):
        return f"{parts.value}_weight", f"{parts.value}_bias"
    return f"{parts.value}.weight", f"{parts.value}.bias"


def _rows(layer: nn.Module, weight: Tensor) -> Tensor:
    """Transpose a weight if needed: to a row for each output, or back to the layer's layout."""
    return weight.detach().T if is_transposed(layer) else weight.detach()


def _inputs(layer: nn.Module, name: str, block: nn.Module) -> int:
    """Return the number of inputs of each output of a projection.

    Raises:
        ValueError: It is a norm.
    """
    weight = _rows(layer, layer.weight)  # type: ignore[arg-type]
    if weight.ndim < 2:
        raise ValueError(
            f"feed_forward='fan_in' does not fit {name} of {type(block).__name__}, a "
            f"{type(layer).__name__} without inputs; pass 'zero' or 'keep'."
        )
    return weight[0].numel()


def _layer(name: str, block: nn.Module) -> Any:
    """Return a projection of a block, which has a weight with values.

    Raises:
        ValueError: There is none.
    """
    try:
        layer: Any = block.get_submodule(name)
        meta = layer.weight.is_meta
    except AttributeError:
        raise ValueError(
            f"{type(block).__name__} has no {name}.weight, which is registered for it; pass the "
            "names of its parts to register_projections."
        ) from None
    if meta or "weight" not in layer._parameters:
        raise ValueError(
            f"{name}.weight of {type(block).__name__} is computed by a parametrization or on the "
            "meta device: initialize it before other surgery, and on its device."
        )
    return layer
