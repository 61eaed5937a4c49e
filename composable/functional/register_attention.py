"""The registry of blocks with self-attention, and the surgery that changes their attention."""

import copy
from collections.abc import Callable
from functools import reduce
from typing import Any

import attrs
from torch import nn

from composable._support.checks import check_flag, checked
from composable._support.registry import Registry, check_class, class_name, named
from composable._support.surgery import report_nothing

from ._reclass import reclass
from .layers.attention import AttentionChange, ChangedAttention
from .layers.attention_bias import DECODERS, ENCODERS
from .replace_modules import replace_named

__all__ = ["register_attention"]


@attrs.frozen
class AttentionBlock:
    """The attribute with the number of heads of a class of blocks, and whether it is causal.

    An attribute `is_causal` of a block, as in Hugging Face, takes precedence.
    """

    heads: str = "config.num_attention_heads"
    causal: bool = True
    by_hand: bool = False


_OF_IMAGES = (
    *("timm.layers.attention.Attention", "timm.layers.attention.AttentionRope"),
    *("timm.models.vision_transformer.Attention", "timm.models.swin_transformer.WindowAttention"),
    "torchvision.models.vision_transformer.EncoderBlock",
)
_SWIN = "torchvision.models.swin_transformer.ShiftedWindowAttention"
REGISTRY: Registry[AttentionBlock] = Registry(
    named(AttentionBlock(), *DECODERS)
    | named(AttentionBlock(causal=False), *ENCODERS)
    | dict.fromkeys(_OF_IMAGES, AttentionBlock("num_heads", causal=False))
    | {_SWIN: AttentionBlock("num_heads", causal=False, by_hand=True)}
)
ADVICE = """Name your own, which calls torch's scaled_dot_product_attention:
    composable.functional.register_attention(MyAttention, heads="num_heads")"""


@checked(kind=check_class, causal=check_flag)
def register_attention(
    kind: type[nn.Module] | str, *, heads: str = "num_heads", causal: bool = True
) -> None:
    """Register a class of self-attention, for the methods that change it.

    A block must call `torch.nn.functional.scaled_dot_product_attention` once in its forward method,
    on queries, keys and values `[batch, heads, length, size]`, or an `nn.MultiheadAttention` as
    `attention(x, x, x, need_weights=False)`, without masks. The first argument of the forward
    method must be its inputs, `[batch, length, width]`. The code of the block is not changed: the
    call is intercepted. In a call of a changed model, a block that does otherwise raises a
    `ValueError`.

    The known blocks come from GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT, DistilBERT,
    RoBERTa and XLM-RoBERTa of Hugging Face, with "sdpa" as their `attn_implementation`, and with
    caches, grouped heads and as decoders; and of the vision transformers and Swin of timm and
    torchvision, without the second version of Swin, whose scores are cosines.

    Args:
        kind: The class, or its full name, so that it need not be imported. The entry applies to
            subclasses too. A second entry for a class replaces the first.
        heads: Name of the attribute of a block that has the number of its heads. It may belong to a
            part, such as "config.n_head".
        causal: Whether a token attends to this and earlier tokens alone. An attribute `is_causal`
            of a block takes precedence.

    Raises:
        TypeError: An argument is of the wrong type.

    Example:
        >>> class Attention(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.num_heads, self.parts = 2, nn.Linear(8, 24)
        ...
        ...     def forward(self, x):
        ...         q, k, v = self.parts(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        ...         y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        ...         return y.transpose(1, 2).flatten(2)
        >>> register_attention(Attention, heads="num_heads")
    """
    if not isinstance(heads, str) or not heads:
        raise TypeError(f'heads={heads!r} must be the name of an attribute, such as "num_heads".')
    REGISTRY.add(kind, AttentionBlock(heads, causal))


def is_causal(block: nn.Module) -> bool:
    """Return whether a token of a known block attends to this and earlier tokens alone."""
    known = REGISTRY.find(type(block))
    return bool(getattr(block, "is_causal", known is not None and known.causal))


def change_attention(
    model: nn.Module,
    build: Callable[[int, int], AttentionChange],
    *,
    applies: Callable[[nn.Module], bool] = lambda block: True,
    kind: str = "self-attention",
    every: int = 1,
    replaces: bool = False,
) -> nn.Module:
    """Add a change to the attention of all known blocks, or of every few.

    Args:
        model: Any module.
        build: A function of the number of heads of a block, and of its number among the blocks,
            from 0 on, that returns its change.
        applies: Whether a known block is one of those.
        kind: What these blocks are, in words.
        every: Which blocks get the change, of those to which it applies: every so many, from the
            first on.
        replaces: Whether a change with other hyperparameters is replaced. Otherwise it is an error.

    Returns:
        The new model; `model` itself if there is nothing to change.

    Raises:
        ValueError: A block has the same change with other hyperparameters, or has no attribute with
            the number of heads; or as `replace_modules`.

    Warns:
        NoEffectWarning: The model has no such block.
    """
    blocks = [name for name, one in model.named_modules() if _is_known(one) and applies(one)]
    chosen = {name: i for i, name in enumerate(blocks) if i % every == 0}
    change = build(1, 0)
    if not blocks:
        report_nothing(change.method, f"{kind} of the classes {REGISTRY.names}", ADVICE)

    def changed(name: str, module: nn.Module) -> nn.Module:
        changes: Any = getattr(module, "attention_changes", {})
        earlier = dict(changes.items()).get(change.method)
        if earlier is not None and earlier.setting == change.setting:
            return module
        if earlier is not None and not replaces:
            raise ValueError(
                f"{change.method}({change.extra_repr()}) must be "
                f"{change.method}({earlier.extra_repr()}), by which {name or 'model'} is changed "
                "already; change the original model instead."
            )
        return _with_change(name, module, lambda heads: build(heads, chosen[name]))

    return replace_named(model, chosen, changed)


def _is_known(module: nn.Module) -> bool:
    known = REGISTRY.find(type(module)) is not None
    cosines = hasattr(module, "logit_scale")  # of the second version of Swin
    return known and not cosines and not getattr(module, "is_cross_attention", False)


def _with_change(name: str, module: Any, build: Callable[[int], AttentionChange]) -> nn.Module:
    if isinstance(module, ChangedAttention):
        new: Any = copy.copy(module)
    else:
        new = reclass(module, ChangedAttention, prefix="Changed")
        new.attention_heads = _count_heads(name, module)
        new.attention_changes = nn.ModuleDict().train(module.training)
        new.by_hand = REGISTRY.find(type(module)).by_hand  # type: ignore[union-attr]
        if hasattr(new, "fused_attn"):  # of timm, whose Swin calls torch's attention if it is set
            new.fused_attn = True
    change = build(new.attention_heads).train(module.training)
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is not None:
        change.to(weight.device, weight.dtype)
    change.attach(name, module)
    new.attention_changes[change.method] = change
    return new  # type: ignore[no-any-return]


def _count_heads(name: str, module: Any) -> int:
    block: Any = REGISTRY.find(type(module))
    heads = reduce(lambda value, key: getattr(value, key, None), block.heads.split("."), module)
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise ValueError(
            f"{name or 'model'} must have the number of its heads in the attribute {block.heads}, "
            f"not {heads!r}; name another for {class_name(type(module))} in register_attention."
        )
    return heads
