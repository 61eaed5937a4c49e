"""Exclusive self-attention: remove from the output of a token what it says of its own value.

"Exclusive Self Attention", 2026, https://arxiv.org/abs/2603.09078
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from composable._support.checks import check_flag, checked

from .layers.attention import Attend, AttentionCall, AttentionChange
from .register_attention import change_attention

__all__ = ["exclusive_self_attention"]


@checked(learned=check_flag)
def exclusive_self_attention(model: nn.Module, *, learned: bool = False) -> nn.Module:
    r"""Remove the component along the token's own value from the output of each head of attention.

    The output $y_h$ of head $h$ at a token is replaced, with the value $v_h$ of this token, by

    $$y_h - \alpha_h \frac{y_h \cdot v_h}{\lVert v_h \rVert^2} \, v_h$$

    where $\alpha_h$ is 1, or $\tanh(a_h)$ with a learned $a_h$ that starts at 0. So attention is
    left with what other tokens say: the feed-forward block sees the token itself anyway. A token
    that attends to itself alone, such as the first of a text, gets an output of 0.

    The function changes the blocks of `register_attention`. Learned numbers are
    `<block>.attention_changes.exclusive_self_attention.strength` in the state dict, one for each
    head; all other keys stay the same.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        learned: Whether $\alpha_h$ is learned. Then the new model computes what the old one did
            until it is trained.

    Returns:
        The new model; `model` itself if it is changed in this way already, or there is nothing to
        change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The model is changed in the other way already, or is compiled or wrapped for
            distributed training.

    Warns:
        NoEffectWarning: The model has no attention of a known class.

    Example:
        >>> from composable.functional import register_attention
        >>> class Attention(nn.Module):
        ...     heads = 1
        ...
        ...     def forward(self, x):
        ...         x = x.unsqueeze(1)
        ...         return nn.functional.scaled_dot_product_attention(x, x, x).squeeze(1)
        >>> register_attention(Attention, heads="heads")
        >>> exclusive_self_attention(Attention())(torch.eye(2).unsqueeze(0))
        tensor([[[0.0000, 0.3302],
                 [0.3302, 0.0000]]])
    """
    return change_attention(model, lambda heads, _: ExclusiveValues(heads, learned=learned))


class ExclusiveValues(AttentionChange):
    """Removes the component along the token's own value from the output of each head."""

    method = "exclusive_self_attention"
    strength: nn.Parameter | None

    def __init__(self, heads: int, *, learned: bool) -> None:
        super().__init__(learned=learned)
        self.strength = nn.Parameter(torch.zeros(heads, 1, 1)) if learned else None

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention, and remove the component."""
        output, own = attend(call), normalize(call.own_values(), dim=-1)
        grouped = torch.unflatten(output, -3, (own.shape[-3], -1))  # heads that share a value
        own = own.unsqueeze(-3)
        along = ((grouped * own).sum(-1, keepdim=True) * own).flatten(-4, -3)
        if self.strength is not None:
            along = (along * self.strength.tanh()).to(output.dtype)
        return output - along
