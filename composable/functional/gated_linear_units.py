"""Gated linear units (GLU): scale the activations by a second linear map.

Dauphin, Fan, Auli and Grangier, "Language Modeling with Gated Convolutional Networks", ICML 2017,
https://arxiv.org/abs/1612.08083; in transformers: Shazeer, "GLU Variants Improve Transformer",
2020, https://arxiv.org/abs/2002.05202
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_flag, checked, kind_of
from composable._support.registry import Registry, class_name, named
from composable._support.sampling import draw_weights

from ._reclass import reclass, refuse_lazy
from .projections import is_transposed
from .replace_modules import replace_or_report

__all__ = ["gated_linear_units", "register_gated_linear_units"]

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeedForward:
    """The names of the first linear layer of a block, and of the activation after it."""

    linear: str
    activation: str


_OF_BERT = FeedForward("dense", "intermediate_act_fn")
REGISTRY: Registry[FeedForward] = Registry(
    {
        **named(_OF_BERT, "bert.BertIntermediate", "roberta.RobertaIntermediate"),
        **named(_OF_BERT, "xlm_roberta.XLMRobertaIntermediate"),
        **named(FeedForward("lin1", "activation"), "distilbert.FFN"),
        **named(FeedForward("c_fc", "act"), "gpt2.GPT2MLP"),
        **named(FeedForward("dense_h_to_4h", "act"), "gpt_neox.GPTNeoXMLP"),
    }
)
GATED = named("act_fn", "llama.LlamaMLP", "mistral.MistralMLP", "qwen2.Qwen2MLP", "qwen3.Qwen3MLP")
GATED |= named("activation_fn", "phi3.Phi3MLP")
"""The names of the activations of blocks that have gated linear units already."""
ADVICE = """Describe your own, which calls self.act(self.fc1(x)):
    from composable.functional import register_gated_linear_units
    register_gated_linear_units(MyBlock, linear="fc1", activation="act")"""


def _check_activation(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is a function, a module or None."""
    if isinstance(value, type) or not (value is None or callable(value)):
        raise TypeError(
            f"{name}={value!r} must be a function of tensors, such as torch.nn.functional.gelu, a "
            "module, such as torch.nn.GELU(), or None."
        )


@checked(act_fn=_check_activation, gated_layer_bias=check_flag, non_gated_layer_bias=check_flag)
def gated_linear_units(
    model: nn.Module,
    *,
    act_fn: Activation | None = None,
    gated_layer_bias: bool = False,
    non_gated_layer_bias: bool = False,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Add gated linear units to feed-forward blocks.

    A block that computes $W_2 \, \mathrm{act}(W_1 x + b_1) + b_2$ is replaced by one that computes

    $$W_2 \left(\mathrm{act}(W_1 x) \odot V x\right) + b_2$$

    The old layer becomes the gated one and keeps its weight $W_1$ and its name. $V$ is new and of
    the same size, so a block has 1.5 times as many weights; build the model with two thirds of the
    hidden size for the same number. In the state dict $V$ is `<layer>.non_gated.weight`, and the
    old bias is removed unless `gated_layer_bias` is True; all other keys stay the same. Gated
    layers are skipped.

    The function replaces the blocks of BERT, DistilBERT, RoBERTa, XLM-RoBERTa, GPT-2 and GPT-NeoX
    of Hugging Face; `register_gated_linear_units` adds others. Llama, Mistral, Phi-3 and Qwen have
    gated linear units already.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        act_fn: The activation of all blocks: a function of tensors, or a module, which is copied
            for each block. None keeps the activation of each block.
        gated_layer_bias: Whether the gated layer has a bias, the old one or a new one.
        non_gated_layer_bias: Whether the new layer has a bias.
        generator: Random number generator of the new weights, which are uniform in ±1/√(inputs),
            as in `nn.Linear`. Default: torch's global generator.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type, or the first layer of a block is not linear.
        ValueError: A block lacks a part that is registered for its class, its linear layer is lazy
            and its inputs are not known yet, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> class Hidden(nn.Sequential):
        ...     pass
        >>> register_gated_linear_units(Hidden, linear="0", activation="1")
        >>> block = Hidden(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
        >>> draw = torch.Generator().manual_seed(0)
        >>> list(gated_linear_units(block, generator=draw).state_dict())
        ['0.weight', '0.non_gated.weight', '2.weight', '2.bias']
    """

    def rule(name: str, module: nn.Module) -> nn.Module:
        block = REGISTRY.find(type(module))
        if block is None or isinstance(linear := _part(module, block.linear), _Gated):
            return module
        path = f"{name}.{block.linear}".lstrip(".")
        refuse_lazy(path, linear, [nn.Linear], "gated_linear_units")
        gated = reclass(linear, _kind(path, linear), prefix="Gated")
        _draw_parameters(gated, gated_layer_bias, non_gated_layer_bias, generator)
        gated.activation = _part(module, block.activation) if act_fn is None else act_fn
        if isinstance(act_fn, nn.Module):
            gated.activation = copy.deepcopy(act_fn).to(linear.weight.device, linear.weight.dtype)
        for part in (gated.non_gated, gated.activation):
            if isinstance(part, nn.Module):
                part.train(linear.training)
        new = reclass(module, type(module))
        _set_part(new, block.linear, gated)
        _set_part(new, block.activation, nn.Identity().train(module.training))
        return new  # type: ignore[no-any-return]

    sought = f"feed-forward blocks of the classes {REGISTRY.names}"
    kinds = {type(module) for module in model.modules()}
    gated = {kind.__name__ for kind in kinds if class_name(kind) in GATED}
    advice = f"{', '.join(sorted(gated))} is gated already." if gated else ADVICE
    return replace_or_report(model, rule, _Gated, "gated_linear_units", sought, advice)


def register_gated_linear_units(
    kind: type[nn.Module] | str, *, linear: str, activation: str
) -> None:
    """Register the parts of a class of feed-forward blocks for `gated_linear_units`.

    Args:
        kind: The class, or its full name, so that it need not be imported. The entry applies to
            subclasses too. A second entry for a class replaces the first.
        linear: Name of the first linear layer of a block, as in `get_submodule`.
        activation: Name of the activation, a module or a function. The block must call it only on
            the outputs of the linear layer: `self.activation(self.linear(x))`.

    Raises:
        TypeError: `kind` is not a class of modules, or a name is not a string.

    Example:
        >>> register_gated_linear_units("package.of_mine.Mlp", linear="up.0", activation="up.1")
    """
    for name, value in [("linear", linear), ("activation", activation)]:
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name}={value!r} must be the name of a part of the block.")
    REGISTRY.add(kind, FeedForward(linear, activation))


class _Gated(nn.Module):
    """A linear layer whose outputs are activated, and scaled by a second linear layer."""

    activation: Activation
    non_gated: nn.Linear

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.gate(inputs)) * self.non_gated(inputs)
        return outputs

    def gate(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        return outputs


class _GatedConv1D(_Gated):
    """The same for `Conv1D` of Hugging Face, a linear layer whose forward needs a bias."""

    weight: Tensor
    bias: Tensor | None
    __repr__ = nn.Module.__repr__  # Conv1D's omits submodules

    def gate(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.weight.T, self.bias)


def _kind(path: str, linear: nn.Module) -> type[_Gated]:
    if isinstance(linear, nn.Linear):
        return _Gated
    if is_transposed(linear):
        return _GatedConv1D
    raise TypeError(
        f"{path} must be a torch.nn.Linear to be gated, not {kind_of(linear)}; call functions that "
        "replace linear layers, such as factorize and peft.get_peft_model, after "
        "gated_linear_units."
    )


def _draw_parameters(
    gated: Any, bias: bool, other_bias: bool, generator: torch.Generator | None
) -> None:
    inputs, outputs = _features(gated)

    def drawn(*shape: int) -> nn.Parameter:
        values = draw_weights(shape, inputs, generator=generator)
        return nn.Parameter(values.to(gated.weight))

    gated.non_gated = nn.Linear(inputs, outputs, other_bias, device="meta")
    gated.non_gated.weight = drawn(outputs, inputs)
    if other_bias:
        gated.non_gated.bias = drawn(outputs)
    if not bias:
        gated.bias = None
    elif gated.bias is None:
        gated.bias = drawn(outputs)


def _features(linear: Any) -> tuple[int, int]:
    outputs, inputs = linear.weight.shape
    return (outputs, inputs) if isinstance(linear, _GatedConv1D) else (inputs, outputs)


def _part(block: nn.Module, path: str) -> Any:
    parent, _, name = path.rpartition(".")
    try:
        return getattr(block.get_submodule(parent), name)
    except AttributeError:
        raise ValueError(
            f"{type(block).__name__} has no part {path!r}, which is registered for it; pass the "
            "names of its parts to register_gated_linear_units."
        ) from None


def _set_part(block: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(block.get_submodule(parent), name, part)
