"""Partial key offset: a part of each key comes from the previous token.

Records of modded-nanogpt, 2026, https://github.com/KellerJordan/modded-nanogpt/pull/169
"""

from math import floor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from composable._support.calls import arguments_of
from composable._support.checks import checked, minimum, within
from composable._support.registry import class_name, named

from .layers.attention import Attend, AttentionCall, AttentionChange
from .layers.attention_bias import ROTATED
from .layers.rotation import Rotation
from .register_attention import change_attention, is_causal

__all__ = ["partial_key_offset"]

_ROTATED = named(None, *(f"{one}Attention" for one in ROTATED)).keys()


@checked(fraction=within(0, 1, ends="()"), every=minimum(1))
def partial_key_offset(model: nn.Module, *, fraction: float = 0.5, every: int = 4) -> nn.Module:
    r"""Replace a part of each key's features by the previous token's.

    With the key $k_t$ of a head at token $t$, and the set $S$ of features that are offset,

    $$k'_{t, i} = \begin{cases} k_{t-1, i} & i \in S \\ k_{t, i} & \text{otherwise} \end{cases}$$

    So a query can look for a token by what stands before it, and copy its value: induction, which
    otherwise takes two layers. The first token of a text or document keeps its key: a token takes
    features of the previous token if some query attends to both, which the mask has.

    The set must not have rotated features. It is the last part of the features where a block
    rotates the first part: GPT-NeoX, and a block of `rotary(model, fraction=...)`. In blocks whose
    rotation is passed to them, Llama, Mistral, Qwen2 and Qwen3, the slowest pairs are no longer
    rotated, and are offset. Other blocks have learned positions or biases, so any features do: each
    half of the features has its last part offset.

    The function changes the causal blocks of `register_attention`. No parameters are added.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        fraction: Share of the features of a key that is offset, above 0 and below 1; one at least.
        every: Which blocks are changed: every so many, from the first on.

    Returns:
        The new model; `model` itself if it is changed with these hyperparameters already, or there
        is nothing to change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, a block rotates too many features or has a sliding
            window, the model is changed with other hyperparameters already, or is compiled or
            wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no causal attention of a known class.

    Example:
        >>> from composable.functional import register_attention
        >>> class Attention(nn.Module):
        ...     heads = 1
        ...
        ...     def forward(self, x):
        ...         return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> register_attention(Attention, heads="heads")
        >>> partial_key_offset(nn.Sequential(Attention()), fraction=0.25)[0].attention_changes
        ModuleDict(
          (partial_key_offset): KeyOffset(fraction=0.25, every=4)
        )
    """
    return change_attention(
        model,
        lambda heads, _: KeyOffset(fraction=fraction, every=every),
        applies=is_causal,
        kind="causal self-attention",
        every=every,
    )


class KeyOffset(AttentionChange):
    """Replaces a part of each key's features by the previous token's."""

    method = "partial_key_offset"
    by_halves = True
    rotated_by_model = False

    def attach(self, name: str, block: nn.Module) -> None:
        """Find out which features the block rotates."""
        fraction, rotated = self.setting["fraction"], _rotated_share(block)
        if rotated is not None and fraction > 1 - rotated:
            raise ValueError(
                f"fraction={fraction} must be at most {1 - rotated}, the share of the features "
                f"that {name or 'model'} doesn't rotate; rotate fewer, such as by "
                "rotary(model, fraction=0.5)."
            )
        if _window(block):
            raise ValueError(
                f"{name or 'model'} must have no sliding window, with which a cache "
                "loses the key before the first one; set sliding_window to None in its config."
            )
        self.by_halves, self.rotated_by_model = rotated is None, _rotated_by_model(block)

    def offset(self, size: int, device: torch.device) -> Tensor:
        """Return which of the features of a key are offset."""
        length = size // 2 if self.by_halves else size
        # 1e-9: a rounding error of the product must not cost a feature.
        first = length - max(1, floor(self.setting["fraction"] * length + 1e-9))
        features = torch.arange(size, device=device)
        return torch.ge(features % length, first)

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Don't rotate the features that are offset, where the rotation is passed."""
        passed = inputs.get("position_embeddings")
        if self.by_halves and self.rotated_by_model and passed is None:
            raise TypeError(
                "partial_key_offset needs position_embeddings, a tuple (cos, sin), in each call of "
                "the attention; pass it by name."
            )
        if not self.by_halves or passed is None:
            return inputs
        cos, sin = passed
        if cos.shape[-1] == 1:  # alibi has replaced the rotation
            return inputs
        still = self.offset(cos.shape[-1], cos.device)
        return {
            **inputs,
            "position_embeddings": (cos.masked_fill(still, 1), sin.masked_fill(still, 0)),
        }

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention with keys that have features of the token before."""
        key, seen = call.key, call.seen()
        moved = self.offset(key.shape[-1], key.device)
        if seen is not None:
            joined = (seen[..., 1:] & seen[..., :-1]).any(-2)  # by any query
            joined = joined.any(-2, keepdim=True) if joined.ndim > 1 else joined  # of any head
            moved = moved & pad(joined, (1, 0)).unsqueeze(-1)
        earlier = torch.cat([key[..., :1, :], key[..., :-1, :]], -2)
        return attend(call._replace(key=torch.where(moved, earlier, key)))


def _rotated_share(block: Any) -> float | None:
    """Return the share of the features that a block rotates by itself; None if it rotates none."""
    if hasattr(block, "rotary_ndims"):  # GPT-NeoX
        return float(block.rotary_ndims / block.head_size)
    found = [
        value.fraction
        for module in block.modules()
        for value in vars(module).values()
        if isinstance(value, Rotation)
    ]
    return max(found, default=None)


def _rotated_by_model(block: nn.Module) -> bool:
    """Return whether a block of Transformers rotates by what its model passes."""
    known = not _ROTATED.isdisjoint(map(class_name, type(block).__mro__))
    if known:
        arguments_of(block, "position_embeddings")
    return known


def _window(block: Any) -> Any:
    config = getattr(block, "config", None)  # Mistral has it there alone
    return getattr(block, "sliding_window", getattr(config, "sliding_window", None))
