"""Gated linear units: let a second linear map scale what the activation lets through.

Dauphin, Fan, Auli and Grangier, "Language Modeling with Gated Convolutional Networks", ICML 2017,
https://arxiv.org/abs/1612.08083; in transformers: Shazeer, "GLU Variants Improve Transformer",
2020, https://arxiv.org/abs/2002.05202
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ._checks import check_flag, check_generator, check_module
from ._random import home
from ._registry import Registry, full_name
from ._surgery import replace_modules, report_nothing
from ._take_over import refuse_lazy, take_over

__all__ = ["gated_linear_units", "register_gated_linear_units"]

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeedForward:
    """Where in a block its first linear layer is, and the activation that follows it."""

    linear: str
    activation: str


_OF_BERT = FeedForward("dense", "intermediate_act_fn")
REGISTRY: Registry[FeedForward] = Registry(
    {
        "transformers.models.bert.modeling_bert.BertIntermediate": _OF_BERT,
        "transformers.models.roberta.modeling_roberta.RobertaIntermediate": _OF_BERT,
        "transformers.models.gpt2.modeling_gpt2.GPT2MLP": FeedForward("c_fc", "act"),
    }
)
CONV1D = "transformers.pytorch_utils.Conv1D"


def gated_linear_units(
    model: nn.Module,
    *,
    act_fn: Activation | None = None,
    gated_layer_bias: bool = False,
    non_gated_layer_bias: bool = False,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Make the first half of feed-forward blocks a gated linear unit.

    Where a block computed $W_2 \, \mathrm{act}(W_1 x + b_1) + b_2$, it computes

    $$W_2 \left(\mathrm{act}(W_1 x) \odot V x\right) + b_2$$

    The old layer is the gated one and keeps its weight $W_1$, under its name. $V$ is new, of the
    same size, so a block has half as many weights again: for as many as before, build the model
    with two thirds of the hidden size. In the state dict $V$ is `<layer>.non_gated.weight`; the old
    bias is gone, unless it is asked for; all other keys stay. What follows, dropout and the second
    layer, stays. Layers that are gated are left alone, so twice is once.

    Known are the blocks of Hugging Face's BERT, RoBERTa and GPT-2; `register_gated_linear_units`
    adds others.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        act_fn: The activation of all blocks, a function of tensors, or a module, of which each
            block has a copy. None for that which each block has.
        gated_layer_bias: Whether the gated layer has a bias: its own, or a new one.
        non_gated_layer_bias: Whether the new layer has a bias.
        generator: Draws the new weights, as `nn.Linear` does: uniform in ±1/√(inputs). Torch's
            global one where None.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type, or a block's first layer is not linear.
        ValueError: A block lacks what was registered for its class, its linear layer is lazy and
            does not know its inputs yet, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> class Hidden(nn.Sequential):
        ...     pass
        >>> register_gated_linear_units(Hidden, linear="0", activation="1")
        >>> block = Hidden(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
        >>> draw = torch.Generator().manual_seed(0)
        >>> list(gated_linear_units(block, generator=draw).state_dict())
        ['0.weight', '0.non_gated.weight', '2.weight', '2.bias']
    """
    check_module("model", model)
    if isinstance(act_fn, type) or not (act_fn is None or callable(act_fn)):
        raise TypeError(
            f"act_fn is {act_fn!r}, but must be a function of tensors, such as "
            "torch.nn.functional.gelu, a module, such as torch.nn.GELU(), or None."
        )
    check_flag("gated_layer_bias", gated_layer_bias)
    check_flag("non_gated_layer_bias", non_gated_layer_bias)
    check_generator(generator)

    def rule(name: str, module: nn.Module) -> nn.Module:
        block = REGISTRY.find(type(module))
        if block is None or isinstance(linear := _part(module, block.linear), _Gated):
            return module
        path = f"{name}.{block.linear}".lstrip(".")
        refuse_lazy(path, linear, [nn.Linear], "gated_linear_units")
        gated: Any = take_over(linear, _kind(path, linear), prefix="Gated")
        weight = linear.weight
        inputs, outputs = _features(gated)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(_draw(*shape, fan_in=inputs, generator=generator).to(weight))

        gated.non_gated = nn.Linear(inputs, outputs, non_gated_layer_bias, device="meta")
        gated.non_gated.weight = drawn(outputs, inputs)
        if non_gated_layer_bias:
            gated.non_gated.bias = drawn(outputs)
        if not gated_layer_bias:
            gated.bias = None
        elif gated.bias is None:
            gated.bias = drawn(outputs)
        gated.activation = _part(module, block.activation) if act_fn is None else act_fn
        if isinstance(act_fn, nn.Module):
            gated.activation = copy.deepcopy(act_fn).to(weight.device, weight.dtype)
        new = take_over(module, type(module))
        for part in (gated.non_gated, gated.activation):
            if isinstance(part, nn.Module):
                part.train(linear.training)
        _put(new, block.linear, gated)
        _put(new, block.activation, nn.Identity().train(module.training))
        return new  # type: ignore[no-any-return]

    new, count = replace_modules(model, rule)
    if count == 0 and not any(isinstance(module, _Gated) for module in model.modules()):
        sought = f"feed-forward blocks of the classes {REGISTRY.names}"
        report_nothing(
            "gated_linear_units", f"{sought}. Others are added with register_gated_linear_units"
        )
    return new


def register_gated_linear_units(
    kind: type[nn.Module] | str, *, linear: str, activation: str
) -> None:
    """Say how `gated_linear_units` finds the parts of a class of feed-forward blocks.

    Args:
        kind: The class, or its full name, so that it need not be imported. Subclasses count too. A
            second entry for a class replaces the first.
        linear: Where in a block its first linear layer is: a name, as of `get_submodule`.
        activation: Where the activation is, a module or a function. The block calls it on what the
            linear layer gave and on nothing else: `self.activation(self.linear(x))`.

    Raises:
        TypeError: `kind` is no class of modules, or a name is no string.

    Example:
        >>> register_gated_linear_units("package.of_mine.Mlp", linear="up.0", activation="up.1")
    """
    for name, value in [("linear", linear), ("activation", activation)]:
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name} is {value!r}, but must be the name of a part of the block.")
    REGISTRY.add(kind, FeedForward(linear, activation))


class _Gated(nn.Module):
    """A linear layer whose outputs go through an activation and are scaled by another one."""

    activation: Activation
    non_gated: nn.Linear

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.gate(inputs)) * self.non_gated(inputs)
        return outputs

    def gate(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        return outputs


class _GatedConv1D(_Gated):
    """The same of Hugging Face's `Conv1D`: a linear layer that can't do without a bias."""

    weight: Tensor
    bias: Tensor | None
    __repr__ = nn.Module.__repr__  # its own names no parts

    def gate(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.weight.T, self.bias)


def _kind(path: str, linear: nn.Module) -> type[_Gated]:
    if isinstance(linear, nn.Linear):
        return _Gated
    if CONV1D in map(full_name, type(linear).__mro__):
        return _GatedConv1D
    raise TypeError(
        f"{path} is a {type(linear).__name__}, but the first layer of a feed-forward block must be "
        "a torch.nn.Linear to be gated. What replaces linear layers, as factorize does, comes "
        "after gated_linear_units."
    )


def _features(linear: Any) -> tuple[int, int]:
    outputs, inputs = linear.weight.shape
    return (outputs, inputs) if isinstance(linear, _GatedConv1D) else (inputs, outputs)


def _part(block: nn.Module, path: str) -> Any:
    parent, _, name = path.rpartition(".")
    try:
        return getattr(block.get_submodule(parent), name)
    except AttributeError:
        raise ValueError(
            f"{type(block).__name__} has no {path!r}, which was registered as a part of its: give "
            "register_gated_linear_units the names that it has."
        ) from None


def _put(block: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(block.get_submodule(parent), name, part)


def _draw(*shape: int, fan_in: int, generator: torch.Generator | None) -> Tensor:
    bound = 1 / sqrt(fan_in)
    return torch.empty(shape, device=home(generator)).uniform_(-bound, bound, generator=generator)
