"""ALiBi: say where tokens are by biases of the attention, so that texts can grow after training.

Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
Extrapolation", ICLR 2022, https://arxiv.org/abs/2108.12409
"""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from ._checks import check_count, check_module
from ._linear_biases import CONVERSIONS, NoPositions
from ._registry import Registry, check_class, full_name
from ._surgery import replace_modules, report_nothing

__all__ = ["alibi", "register_alibi"]

Conversion = TypeVar("Conversion", bound=Callable[[Any, int], nn.Module])

REGISTRY: Registry[Callable[[Any, int], nn.Module]] = Registry(CONVERSIONS)


def alibi(model: nn.Module, *, max_sequence_length: int) -> nn.Module:
    r"""Replace learned position embeddings by biases that grow linearly with the distance.

    Head $h$ of $n$ attends from token $i$ to the tokens $j$ with the weights

    $$\mathrm{softmax}_j \left(\frac{q_i \cdot k_j}{\sqrt d} - m_h |i - j|\right), \quad
    m_h = 2^{-8 h / n}$$

    and `alibi_slopes` has the rule where $n$ is no power of two. Nothing is added for positions any
    more, so no table ends, and the biases go on beyond any length. Masks, of padding and of what is
    to come, hold as before; distances count padding between two tokens too.

    Known are Hugging Face's GPT-2, BERT and RoBERTa, with "eager" and "sdpa" as their
    `attn_implementation`, with caches and as decoders. Other classes are converted as
    `register_alibi` was told. The table of positions leaves the state dict, and no buffer comes in
    its place; all other keys stay. Cross-attention stays as it is.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        max_sequence_length: How long sequences are to be, at least 1. A model of Hugging Face has
            it as its `config.max_position_embeddings`, which other code goes by; it takes longer
            sequences all the same. Conversions that were registered are given it.

    Returns:
        The new model; `model` itself where it was converted for this length already, or there was
        nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type, or a conversion returned no module.
        ValueError: `max_sequence_length` is below 1, the model was converted for another one, has
            position embeddings but no attention that could be converted, computes attention in
            another way than those above, or is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> from composable.functional import alibi_bias
        >>> class Attention(nn.MultiheadAttention):
        ...     def forward(self, x):
        ...         return super().forward(x, x, x)[0]
        >>> class BiasedAttention(Attention):
        ...     def forward(self, x):
        ...         bias = alibi_bias(self.num_heads, x.shape[1], device=x.device)
        ...         return nn.MultiheadAttention.forward(
        ...             self, x, x, x, attn_mask=bias.repeat(len(x), 1, 1), need_weights=False
        ...         )[0]
        >>> @register_alibi(Attention)
        ... def convert(attention, max_sequence_length):
        ...     attention.__class__ = BiasedAttention
        ...     return attention
        >>> model = nn.Sequential(Attention(8, 2, batch_first=True))
        >>> alibi(model, max_sequence_length=64)[0].__class__.__name__
        'BiasedAttention'
    """
    check_module("model", model)
    check_count("max_sequence_length", max_sequence_length, 1)
    converted = {name: n for name, m in model.named_modules() if (n := _length(m)) is not None}
    for name, length in converted.items():
        if length != max_sequence_length:
            raise ValueError(
                f"model was converted already, for max_sequence_length={length}, in "
                f"{name or 'the model'}: convert the one that it was made of, or keep to that."
            )

    def rule(name: str, module: nn.Module) -> nn.Module:
        conversion = REGISTRY.find(type(module))
        inside = any(name == one or name.startswith(f"{one}.") for one in converted)
        if conversion is None or inside or getattr(module, "is_cross_attention", False):
            return module
        new = conversion(copy.copy(module), max_sequence_length)
        if not isinstance(new, nn.Module):
            raise TypeError(
                f"the conversion of {full_name(type(module))} returned {new!r}, but must return "
                "the module that takes its place."
            )
        new.alibi_length = max_sequence_length  # type: ignore[assignment]
        return new

    new, count = replace_modules(model, rule)
    if count:
        _check_biased(new)
    elif not converted:
        sought = f"position embeddings and attention of the classes {REGISTRY.names}"
        report_nothing("alibi", f"{sought}. Others can be added with register_alibi")
    return new


def register_alibi(*kinds: type[nn.Module] | str) -> Callable[[Conversion], Conversion]:
    """Say how `alibi` converts a class of attention, or of position embeddings: a decorator.

    Args:
        kinds: The classes, or their full names, so that they need not be imported. Subclasses are
            converted likewise, unless they have a conversion of their own. A second conversion for
            a class replaces the first.

    Returns:
        A decorator of a function `convert(module, max_sequence_length)`, which returns the module
        that takes the place of `module`. It is given a copy, so it may change that one, and return
        it: its attributes and its class, but not its tensors, which are shared.

    Raises:
        TypeError: One of `kinds` is no class of modules, or what is decorated is no function.

    Example:
        >>> @register_alibi("package.of_mine.Positions")
        ... def leave_out(positions, max_sequence_length):
        ...     return nn.Identity()
    """
    for kind in kinds:
        check_class("kinds", kind)

    def register(conversion: Conversion) -> Conversion:
        if not callable(conversion):
            raise TypeError(
                f"conversion is {conversion!r}, but must be a function of a module and of "
                "max_sequence_length."
            )
        for kind in kinds:
            REGISTRY.add(kind, conversion)
        return conversion

    return register


def _length(module: nn.Module) -> int | None:
    """The length that a module was converted for, if it was."""
    return getattr(module, "alibi_length", None)


def _check_biased(model: nn.Module) -> None:
    """Refuse a model in which nothing is left that says where tokens are."""
    without = [m for m in model.modules() if any(isinstance(c, NoPositions) for c in m.children())]
    biased = [m for m in model.modules() if _length(m) is not None and m not in without]
    if without and not biased:
        raise ValueError(
            f"model has the position embeddings of {type(without[0]).__name__}, but no attention "
            f"that could be converted. Known are {REGISTRY.names}; others are added with "
            "register_alibi."
        )
