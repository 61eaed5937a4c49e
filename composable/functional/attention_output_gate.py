"""A gate on the output of each head of attention.

Qiu et al., "Gated Attention for Large Language Models: Non-linearity, Sparsity, and
Attention-Sink-Free", 2025, https://arxiv.org/abs/2505.06708
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from composable._support.checks import checked, minimum

from .layers.attention import Attend, AttentionCall, AttentionChange
from .register_attention import change_attention

__all__ = ["attention_output_gate"]


@checked(channels=minimum(1))
def attention_output_gate(model: nn.Module, *, channels: int = 12) -> nn.Module:
    r"""Multiply the output of each head of attention by a gate, which its inputs determine.

    The output $y_h$ of head $h$ at a token is replaced, with the first $c$ features of the inputs
    $x$ of the block at this token, by

    $$2 \, \sigma(w_h \cdot x_{1 \dots c}) \; y_h$$

    So a head can be switched off for a token, and need not attend to some token that has nothing to
    say. The weights $w_h$ start at zero, so the new model computes what the old one did until it is
    trained.

    The function changes the blocks of `register_attention`. In the state dict,
    `<block>.attention_changes.attention_output_gate.gate` is added, `[heads, channels]`; all other
    keys stay the same.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        channels: Number $c$ of features of the inputs that determine the gates, at least 1 and at
            most the width of the model.

    Returns:
        The new model; `model` itself if it has these gates already, or there is nothing to change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `channels` is below 1, the model has gates of another size already, or is
            compiled or wrapped for distributed training. In a call of the new model: `channels` is
            larger than the width.

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
        >>> attention_output_gate(Attention(), channels=4).attention_changes
        ModuleDict(
          (attention_output_gate): OutputGate(channels=4)
        )
    """
    return change_attention(model, lambda heads, _: OutputGate(heads, channels=channels))


class OutputGate(AttentionChange):
    """Multiplies the output of each head by a gate."""

    method = "attention_output_gate"

    def __init__(self, heads: int, *, channels: int) -> None:
        super().__init__(channels=channels)
        self.gate = nn.Parameter(torch.zeros(heads, channels))

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention, and multiply it by the gates."""
        channels, width = self.gate.shape[-1], call.hidden.shape[-1]
        if channels > width:
            raise ValueError(
                f"channels={channels} must be at most {width}, the width of the inputs of the "
                "block; pass a smaller number to attention_output_gate."
            )
        gates = 2 * linear(call.hidden[..., :channels], self.gate).sigmoid()
        output = attend(call)
        return output * gates.transpose(-1, -2).unsqueeze(-1).to(output.dtype)
