"""Sliding windows: attention to the last tokens alone, and a schedule that lets them grow.

Beltagy, Peters and Cohan, "Longformer: The Long-Document Transformer", 2020,
https://arxiv.org/abs/2004.05150; long and short ones in turn: Gemma Team, "Gemma 2: Improving Open
Language Models at a Practical Size", 2024, https://arxiv.org/abs/2408.00118; windows that grow:
records of modded-nanogpt, 2025, https://github.com/KellerJordan/modded-nanogpt
"""

from math import floor

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from composable._support.checks import check_count, check_order, checked, minimum, within

from .layers.attention import Attend, AttentionCall, AttentionChange
from .register_attention import change_attention, is_causal

__all__ = ["sliding_window", "warmed_up_window"]


@checked(every=minimum(1))
def sliding_window(
    model: nn.Module, *, window: int | None, short_window: int | None = None, every: int = 2
) -> nn.Module:
    r"""Let a token attend to itself and to the last tokens before it, `window` in all.

    Padding and the tokens of other documents, which a mask excludes, don't count. With
    `short_window`, blocks have a long or a short window: of each `every` blocks, the last one has
    `window`. A window that is as long as the text changes nothing.

    Without a mask, queries and keys are cut into pieces, of which each attends to itself and to the
    piece before it. So time and memory grow with length × window, and not with length². With a
    mask, such as for padding, the result is the same, but it takes no less time.

    The function changes the causal blocks of `register_attention`. No parameters are added. The
    windows of an earlier call are replaced.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        window: Number of tokens that a token attends to, itself included, at least 1; None for all.
        short_window: The same in the other blocks, at most `window`. None for no difference.
        every: Which blocks have `window` if there is a short one: the last of every so many.

    Returns:
        The new model; `model` itself if it has these windows already, or there is nothing to
        change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the model is compiled or wrapped for distributed
            training.

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
        >>> model = nn.Sequential(*(Attention() for _ in range(4)))
        >>> new = sliding_window(model, window=64, short_window=16)
        >>> [block.attention_changes.sliding_window.length for block in new]
        [16, 64, 16, 64]
    """
    if window is not None:
        check_count("window", window, 1)
    if short_window is not None:
        check_count("short_window", short_window, 1)
        if window is not None:
            check_order("short_window", short_window, "window", window)
    setting = {"window": window, "short_window": short_window, "every": every}

    def build(heads: int, index: int) -> SlidingWindow:
        short = short_window is not None and (index + 1) % every
        return SlidingWindow(short_window if short else window, setting)

    return change_attention(
        model, build, applies=is_causal, kind="causal self-attention", replaces=True
    )


@checked(
    elapsed=within(0),
    duration=within(0, 1),
    min_window=minimum(1),
    max_window=minimum(1),
    steps=minimum(1),
)
def warmed_up_window(
    elapsed: float,
    *,
    duration: float = 0.5,
    min_window: int = 128,
    max_window: int = 1024,
    steps: int = 4,
) -> int:
    """Return the window at a time of training: it grows linearly, in a few steps.

    Args:
        elapsed: Elapsed fraction of training, 0 or more.
        duration: Share of training after which the window has grown, in [0, 1]. 0 for no warm-up.
        min_window: Window at the start, at least 1.
        max_window: Window after the warm-up, at least `min_window`.
        steps: Number of times that the window grows, at least 1. In a compiled model each compiles.

    Returns:
        The number of tokens, in `[min_window, max_window]`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    Example:
        >>> [warmed_up_window(t / 10, min_window=16, max_window=64, steps=2) for t in range(6)]
        [16, 16, 16, 40, 40, 64]
    """
    check_order("min_window", min_window, "max_window", max_window)
    if elapsed >= duration:
        return max_window
    # 1e-9: a rounding error of elapsed must not delay a step.
    done = floor(elapsed / duration * steps + 1e-9)
    return min_window + (max_window - min_window) * done // steps


class SlidingWindow(AttentionChange):
    """Lets a token attend to the last tokens."""

    method = "sliding_window"

    def __init__(self, length: int | None, setting: dict[str, int | None]) -> None:
        super().__init__(**setting)
        self.length = length

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention to the last tokens that each query attends to."""
        queries, keys, length = call.query.shape[-2], call.key.shape[-2], self.length
        if length is None or keys <= length:
            return attend(call)
        if call.is_causal and queries == keys:
            return _by_pieces(attend, call, length)
        seen = call.seen()
        if seen is None:
            seen = torch.ones(queries, keys, dtype=torch.bool, device=call.key.device)
            seen = seen.tril() if call.is_causal else seen
        seen = seen & (seen.flip(-1).cumsum(-1).flip(-1) <= length)
        if call.mask is not None and call.mask.dtype != torch.bool:
            seen = call.mask.masked_fill(~seen, -torch.inf)
        return attend(call._replace(mask=seen, is_causal=False))


def _by_pieces(attend: Attend, call: AttentionCall, length: int) -> Tensor:
    """Compute causal attention of pieces as long as the window to themselves and those before."""
    total = call.query.shape[-2]
    count = -(-total // length)
    parts = (call.query, call.key, call.value)
    query, key, value = (part[..., :length, :] for part in parts)
    first = call._replace(query=query, key=key, value=value)
    query, key, value = (
        torch.unflatten(pad(part, (0, 0, 0, count * length - total)), -2, (count, length))
        for part in parts
    )
    key, value = (
        torch.cat([part[..., :-1, :, :], part[..., 1:, :, :]], -2) for part in (key, value)
    )
    at = torch.arange(length, device=query.device).unsqueeze(-1)
    of = torch.arange(2 * length, device=query.device)
    rest = call._replace(
        query=_stacked(query[..., 1:, :, :]),
        key=_stacked(key),
        value=_stacked(value),
        mask=(at < of) & (of <= at + length),
        is_causal=False,
    )
    batch = (count - 1, *call.query.shape[:-3])
    outputs = torch.unflatten(attend(rest), 0, batch).movedim(0, -3).flatten(-3, -2)
    return torch.cat([attend(first), outputs[..., : total - length, :]], -2)


def _stacked(pieces: Tensor) -> Tensor:
    """Move pieces `[*batch, heads, pieces, length, size]` into the batch."""
    return pieces.movedim(-3, 0).flatten(0, -4)
