"""Rotary position embeddings: replace learned positions by rotations of queries and keys.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
https://arxiv.org/abs/2104.09864
"""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from composable._support.checks import check_module
from composable._support.registry import Registry

from ._positions import PositionSurgery
from .layers.rotation import CONVERSIONS, Rotation, rotation_of

Conversion = TypeVar("Conversion", bound=Callable[[Any, Rotation], nn.Module])

ADVICE = """Describe your own, which rotates its queries and keys:
    @composable.functional.register_rotary(MyAttention)
    def convert(attention, rotation): return MyRotaryAttention(attention, rotation)"""
REGISTRY: Registry[Callable[[Any, Rotation], nn.Module]] = Registry(CONVERSIONS)
_SURGERY = PositionSurgery(
    method="rotary",
    setting="rotation",
    attribute="rotary",
    setting_of=rotation_of,
    registry=REGISTRY,
    other="alibi",
    converted_by_other=lambda module: hasattr(module, "alibi_length"),
    advice=ADVICE,
)


def rotary(
    model: nn.Module,
    *,
    base: float = 10000.0,
    fraction: float = 1.0,
    interleaved: bool = False,
) -> nn.Module:
    """Replace learned position embeddings by rotations of the queries and keys.

    `rotary_embedding` has the formula. The function converts GPT-2, BERT, DistilBERT, RoBERTa and
    XLM-RoBERTa of Hugging Face, with each `attn_implementation`, with caches and as decoders.
    GPT-2 takes `position_ids`; in the others, positions count from the start of a row.
    `register_rotary` adds other classes. Learned position embeddings are removed from the state
    dict, and no buffer is added; all other keys stay the same. Cross-attention is not changed.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        base: Base of the wavelengths, above 1.
        fraction: Share of the features of a head that is rotated, in [0, 1]. 0 removes the position
            embeddings without a replacement.
        interleaved: Rotate pairs of neighbours, instead of pairs of the two halves.

    Returns:
        The new model; `model` itself if it is converted with these hyperparameters already, or
        there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type, or a conversion did not return a module.
        ValueError: A number is out of range, the model is converted already with other
            hyperparameters or by `alibi`, has position embeddings but no known attention, or is
            wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> class Attention(nn.MultiheadAttention):
        ...     pass
        >>> @register_rotary(Attention)
        ... def convert(attention, rotation):
        ...     attention.rotation = rotation  # for its forward method
        ...     return attention
        >>> rotary(nn.Sequential(Attention(8, 2)), fraction=0.5)[0].rotation
        Rotation(base=10000.0, fraction=0.5, interleaved=False)
    """
    check_module("model", model)
    return _SURGERY(model, Rotation(base=base, fraction=fraction, interleaved=interleaved))


def register_rotary(*kinds: type[nn.Module] | str) -> Callable[[Conversion], Conversion]:
    """Register how `rotary` converts a class of attention or position embeddings, as a decorator.

    Args:
        kinds: Classes, or their full names: as for `register_alibi`.

    Returns:
        A decorator for a function `convert(module, rotation)` that returns the replacement of
        `module`. Its `rotation` is a `Rotation`: `rotation(query, past=0)` rotates queries or keys.
        The module is a copy, as for `register_alibi`.

    Raises:
        TypeError: One of `kinds` is not a class of modules, or the decorated object is not
            callable.

    Example:
        >>> @register_rotary("package.of_mine.Positions")
        ... def remove(positions, rotation):
        ...     return nn.Identity()
    """
    return _SURGERY.register(kinds)
