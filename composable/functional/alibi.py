"""ALiBi: replace position embeddings by linear attention biases, to extrapolate to longer inputs.

Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
Extrapolation", ICLR 2022, https://arxiv.org/abs/2108.12409
"""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from composable._support.checks import checked, minimum
from composable._support.registry import Registry

from ._positions import PositionSurgery
from .layers.attention_bias import CONVERSIONS
from .layers.rotation import rotation_of

Conversion = TypeVar("Conversion", bound=Callable[[Any, int], nn.Module])

ADVICE = """Describe your own, with alibi_bias added to the scores of the attention:
    @composable.functional.register_alibi(MyAttention)
    def convert(attention, max_sequence_length): return MyBiasedAttention(attention)"""
REGISTRY: Registry[Callable[[Any, int], nn.Module]] = Registry(CONVERSIONS)
_SURGERY: PositionSurgery[int] = PositionSurgery(
    method="alibi",
    setting="max_sequence_length",
    attribute="alibi_length",
    setting_of=lambda module: getattr(module, "alibi_length", None),
    registry=REGISTRY,
    other="rotary",
    converted_by_other=lambda module: rotation_of(module) is not None,
    advice=ADVICE,
)


@checked(max_sequence_length=minimum(1))
def alibi(model: nn.Module, *, max_sequence_length: int) -> nn.Module:
    r"""Replace learned or rotary position embeddings by attention biases linear in the distance.

    Head $h$ of $n$ attends from token $i$ to the tokens $j$ with the weights

    $$\mathrm{softmax}_j \left(\frac{q_i \cdot k_j}{\sqrt d} - m_h |i - j|\right), \quad
    m_h = 2^{-8 h / n}$$

    and `alibi_slopes` has the rule for $n$ that is not a power of two. Position embeddings are
    removed, so there is no maximum length. Padding masks and causal masks apply as before; padding
    between two tokens counts towards their distance.

    The function converts GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT, DistilBERT, RoBERTa
    and XLM-RoBERTa of Hugging Face, with "eager" and "sdpa" as their `attn_implementation`, with
    caches and as decoders. `register_alibi` adds other classes. Learned position embeddings are
    removed from the state dict, rotary ones are replaced by a rotation by 0, and no buffer is
    added; all other keys stay the same. Cross-attention is not changed.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        max_sequence_length: Maximum sequence length, at least 1. Hugging Face models store it in
            `config.max_position_embeddings` for other code, but accept longer sequences.
            Registered conversions receive it as an argument.

    Returns:
        The new model; `model` itself if it is converted for this length already, or there is
        nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type, or a conversion did not return a module.
        ValueError: `max_sequence_length` is below 1, the model is converted for another length
            or by `rotary`, has position embeddings but no known attention, uses another attention
            implementation, or is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

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
    return _SURGERY(model, max_sequence_length)


def register_alibi(*kinds: type[nn.Module] | str) -> Callable[[Conversion], Conversion]:
    """Register how `alibi` converts a class of attention or position embeddings, as a decorator.

    Args:
        kinds: Classes, or their full names, so that they need not be imported. The conversion
            applies to subclasses too, unless they have their own. A second conversion for a class
            replaces the first.

    Returns:
        A decorator for a function `convert(module, max_sequence_length)` that returns the
        replacement of `module`. The module is a copy: the function may change its attributes and
        its class and return it, but not change its tensors, which are shared.

    Raises:
        TypeError: One of `kinds` is not a class of modules, or the decorated object is not
            callable.

    Example:
        >>> @register_alibi("package.of_mine.Positions")
        ... def remove(positions, max_sequence_length):
        ...     return nn.Identity()
    """
    return _SURGERY.register(kinds)
