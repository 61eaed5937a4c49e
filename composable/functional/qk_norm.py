"""Query-key normalization: normalize the queries and keys of each head, and learn their scale.

Henry et al., "Query-Key Normalization for Transformers", 2020, https://arxiv.org/abs/2010.04245;
Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", ICML 2023,
https://arxiv.org/abs/2302.05442
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from composable._support.checks import check_flag, checked, within

from .layers.attention import Attend, AttentionCall, AttentionChange
from .register_attention import change_attention

__all__ = ["qk_norm"]


@checked(gain=within(0, ends="()"), learned=check_flag)
def qk_norm(model: nn.Module, *, gain: float = 1.0, learned: bool = True) -> nn.Module:
    r"""Normalize the queries and the keys of each head to a root mean square of 1.

    Head $h$ with features of size $d$ attends with the scores

    $$\frac{g_h}{\sqrt d} \; \hat q \cdot \hat k, \qquad \hat x = \frac{x}{\sqrt{\frac1d
    \sum_i x_i^2}}$$

    so that the scores are at most $g_h \sqrt d$, however large the weights become. It makes no
    difference whether rotary positions are before or after it, since a rotation keeps norms. If the
    block has another scale than $1 / \sqrt d$, it stays.

    The function changes the blocks of `register_attention`, except those with a norm `q_norm`, such
    as those of Qwen3, which normalize already. A learned gain is
    `<block>.attention_changes.qk_norm.gain` in the state dict, one number for each head; all other
    keys stay the same.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        gain: The gain $g_h$ of each head, or its initial value, above 0.
        learned: Whether the gains are parameters.

    Returns:
        The new model; `model` itself if it is normalized with these hyperparameters already, or
        there is nothing to change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `gain` is out of range, the model is normalized with other hyperparameters
            already, or is compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no attention of a known class.

    Example:
        >>> from composable.functional import register_attention
        >>> class Attention(nn.Module):
        ...     heads = 2
        ...
        ...     def forward(self, x):
        ...         x = x.unflatten(-1, (2, -1)).transpose(1, 2)
        ...         return nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2)
        >>> register_attention(Attention, heads="heads")
        >>> list(qk_norm(Attention()).state_dict())
        ['attention_changes.qk_norm.gain']
    """
    return change_attention(
        model,
        lambda heads, _: QueryKeyNorm(heads, gain=gain, learned=learned),
        applies=lambda block: isinstance(getattr(block, "q_norm", None), nn.Identity | None),
        kind="self-attention without a norm of queries",
    )


class QueryKeyNorm(AttentionChange):
    """Normalizes queries and keys."""

    method = "qk_norm"

    def __init__(self, heads: int, *, gain: float, learned: bool) -> None:
        super().__init__(gain=gain, learned=learned)
        self.gain = nn.Parameter(torch.full((heads, 1, 1), float(gain))) if learned else gain

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention of normalized queries and keys."""
        query, key = (rms_norm(part, part.shape[-1:]) for part in (call.query, call.key))
        query = (query * self.gain).to(call.query.dtype)
        return attend(call._replace(query=query, key=key))
