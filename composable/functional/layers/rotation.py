"""Rotary position embeddings of queries and keys, and the conversions of Hugging Face models."""

from collections.abc import Callable
from math import floor
from typing import Any

import attrs
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from composable._support.calls import Arguments, arguments_of
from composable._support.checks import (
    check_count,
    check_flag,
    check_place,
    check_range,
    check_tensor,
)
from composable._support.registry import named

from .._reclass import reclass
from .attention_bias import EMBEDDINGS, ENCODERS, WithoutPositions, remove_table, remove_wpe


@attrs.frozen(kw_only=True)
class Rotation:
    """Hyperparameters of `rotary_embedding`, which rotates queries or keys when called.

    Args:
        base: Base of the wavelengths, above 1.
        fraction: Share of the features of a head that is rotated, in [0, 1].
        interleaved: Rotate pairs of neighbours, instead of pairs of the two halves.

    Example:
        >>> Rotation(fraction=0.5)(torch.randn(2, 4, 16, 8)).shape
        torch.Size([2, 4, 16, 8])
    """

    base: float = 10000.0
    fraction: float = 1.0
    interleaved: bool = False

    def __attrs_post_init__(self) -> None:
        check_range("base", self.base, 1, ends="(]")
        check_range("fraction", self.fraction, 0, 1)
        check_flag("interleaved", self.interleaved)

    def __call__(
        self,
        inputs: Shaped[Tensor, "*batch length size"],
        *,
        past: int = 0,
        positions: Shaped[Tensor, "..."] | None = None,
    ) -> Shaped[Tensor, "*batch length size"]:
        """Rotate queries or keys: see `rotary_embedding`."""
        how = attrs.asdict(self)
        return rotary_embedding(inputs, past=past, positions=positions, **how)


def rotary_embedding(
    inputs: Shaped[Tensor, "*batch length size"],
    *,
    past: int = 0,
    positions: Shaped[Tensor, "..."] | None = None,
    base: float = 10000.0,
    fraction: float = 1.0,
    interleaved: bool = False,
) -> Shaped[Tensor, "*batch length size"]:
    r"""Rotate the queries or the keys of attention by angles proportional to their positions.

    The first $d$ features of a head form $d / 2$ pairs. At position $p$, pair $i$ is rotated by

    $$p \cdot b^{-2 i / d}, \quad i = 0, \dots, d / 2 - 1$$

    so that the product of a rotated query and a rotated key depends on the distance of their
    positions alone. It is `rotate_pairs(inputs, *rotary_tables(...))`.

    Args:
        inputs: Queries or keys `[..., length, size]`, of any floating-point dtype.
        past: Number of cached keys: the position of the first token.
        positions: Positions of the tokens, instead of `past`: integers or floating-point numbers
            that broadcast to `inputs.shape[:-1]`, such as `[batch, 1, length]` for
            `[batch, heads, length, size]`.
        base: Base $b$ of the wavelengths, above 1.
        fraction: Share of the features that is rotated, in [0, 1]; $d$ is rounded down to an even
            number. The others don't change.
        interleaved: Pair each even feature with the next one, as GPT-J does. Otherwise pair the
            first half of the $d$ features with the second, as GPT-NeoX and Llama do.

    Returns:
        A tensor of the shape, dtype and device of `inputs`; `inputs` itself if $d$ is 0. The angles
        and the rotation are computed in float32 at least.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, the shapes don't match, or both `past` and `positions`
            are passed.

    Example:
        >>> rotary_embedding(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """
    _check_heads(inputs)
    check_count("past", past)
    check_range("fraction", fraction, 0, 1)
    dtype = torch.promote_types(inputs.dtype, torch.float32)
    if positions is None:
        at = torch.arange(past, past + inputs.shape[-2], device=inputs.device)
    elif past:
        raise ValueError(f"past={past} must be 0 if positions are passed; add it to the positions.")
    else:
        at = positions
        check_tensor("positions", at)
        if not _broadcasts(at.shape, inputs.shape[:-1]):
            raise ValueError(
                f"positions must broadcast to {tuple(inputs.shape[:-1])}, the shape of inputs "
                f"without the features, not {tuple(at.shape)}."
            )
    # 1e-9: a rounding error of the product must not cost a pair.
    size = 2 * floor(fraction * inputs.shape[-1] / 2 + 1e-9)
    cos, sin = rotary_tables(at, size, base=base, dtype=dtype)
    return rotate_pairs(inputs, cos, sin, interleaved=interleaved)


def rotary_tables(
    positions: Shaped[Tensor, "*batch length"],
    size: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*batch length pairs"], Float[Tensor, "*batch length pairs"]]:
    """Return the cosines and the sines of the angles of `rotary_embedding`.

    Args:
        positions: Positions of the tokens, integers or floating-point numbers.
        size: Number of rotated features, an even number. Each pair of them has an angle.
        base: Base of the wavelengths, above 1.
        dtype: Dtype of the angles and of the tables. In float16 and bfloat16, positions above a few
            hundred are not distinct.

    Returns:
        The cosines and the sines, on the device of `positions`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `size` is odd or negative, or `base` is not above 1.

    Example:
        >>> rotary_tables(torch.arange(2), 2)[0]
        tensor([[1.0000],
                [0.5403]])
    """
    check_tensor("positions", positions)
    check_count("size", size)
    check_range("base", base, 1, ends="(]")
    check_place(None, dtype)
    if size % 2:
        raise ValueError(f"size={size!r} must be even; each pair of features has an angle.")
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=dtype) / max(size, 1)
    angles = positions.to(dtype).unsqueeze(-1) * base**-exponents
    return angles.cos(), angles.sin()


def rotate_pairs(
    inputs: Shaped[Tensor, "*batch length size"],
    cos: Float[Tensor, "*#batch length pairs"],
    sin: Float[Tensor, "*#batch length pairs"],
    *,
    interleaved: bool = False,
) -> Shaped[Tensor, "*batch length size"]:
    """Rotate pairs of features by the angles of `rotary_tables`.

    Args:
        inputs: Queries or keys `[..., length, size]`, of any floating-point dtype.
        cos: Cosines of the angles, `[..., length, pairs]`. They broadcast to the inputs.
        sin: Sines of the angles.
        interleaved: Pair each even feature with the next one. Otherwise pair the first half of the
            `2 * pairs` features with the second.

    Returns:
        A tensor of the shape, dtype and device of `inputs`; `inputs` itself if there are no pairs.
        Features after the pairs don't change.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The shapes or devices don't match.

    Example:
        >>> quarter = torch.zeros(1, 1), torch.ones(1, 1)
        >>> rotate_pairs(torch.tensor([[1.0, 2.0, 3.0]]), *quarter)
        tensor([[-2.,  1.,  3.]])
    """
    _check_heads(inputs)
    check_tensor("cos", cos)
    check_tensor("sin", sin)
    check_flag("interleaved", interleaved)
    pairs = cos.shape[-1] if cos.ndim else -1
    fits = 0 <= 2 * pairs <= inputs.shape[-1] and _broadcasts(cos.shape[:-1], inputs.shape[:-1])
    if cos.shape != sin.shape or not fits:
        raise ValueError(
            "cos and sin must have one shape, [..., length, pairs], that broadcasts to "
            f"{tuple(inputs.shape[:-1])} with at most {inputs.shape[-1] // 2} pairs for the "
            f"inputs, not {tuple(cos.shape)} and {tuple(sin.shape)}."
        )
    if cos.device != inputs.device or sin.device != inputs.device:
        raise ValueError(
            f"cos and sin must be on the device of inputs, {inputs.device}, not on {cos.device} "
            f"and {sin.device}."
        )
    if not pairs:
        return inputs
    rotated, rest = inputs[..., : 2 * pairs], inputs[..., 2 * pairs :]
    split = (pairs, 2) if interleaved else (2, pairs)
    at = -1 if interleaved else -2
    x, y = rotated.reshape(*rotated.shape[:-1], *split).unbind(at)
    turned = torch.stack([x * cos - y * sin, y * cos + x * sin], at).flatten(-2)
    return torch.cat([turned.to(inputs.dtype), rest], -1)


def rotation_of(module: nn.Module) -> Rotation | None:
    """Return the rotation with which a module is converted, or None."""
    found = getattr(module, "rotary", None)
    return found if isinstance(found, Rotation) else None


def _check_heads(inputs: Any) -> None:
    check_tensor("inputs", inputs)
    if not inputs.is_floating_point() or inputs.ndim < 2:
        raise ValueError(
            "inputs must be queries or keys [..., length, size] of a floating-point dtype, not "
            f"{tuple(inputs.shape)} of {inputs.dtype}."
        )


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether a tensor of one shape expands to another."""
    return len(shape) <= len(to) and all(
        number in (1, other) for number, other in zip(shape[::-1], to[::-1], strict=False)
    )


class _Projection(nn.Module):
    """The projection to queries or to keys; a base before the class of it."""

    rotary: Rotation
    heads: int
    positions: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.rotated(super().forward(x))

    def rotated(self, part: Tensor) -> Tensor:
        at = self.positions.unsqueeze(-2)  # the same for all heads
        by_head = part.reshape(*part.shape[:-1], self.heads, -1).transpose(-2, -3)
        return self.rotary(by_head, positions=at).transpose(-2, -3).flatten(-2)


class _Rotated(_Projection):
    """The projection to queries, keys and values of GPT-2; a base before the class of it."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = super(_Projection, self).forward(x).chunk(3, -1)
        return torch.cat([self.rotated(query), self.rotated(key), value], -1)


class _RotaryAttention(nn.Module):
    """Self-attention that rotates queries and keys; a base before the class of Hugging Face."""

    projections: tuple[str, ...]
    call_arguments: Arguments
    layer_idx: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.call_arguments.bind(args, kwargs)
        rotated = [getattr(self, name) for name in self.projections]
        positions = self.positions_of(bound)
        if positions is None:
            cache, hidden = self.call_arguments.cache_in(bound), bound["hidden_states"]
            past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
            positions = past + torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        for projection in rotated:
            projection.positions = positions
        try:
            return super().forward(*args, **kwargs)
        finally:
            for projection in rotated:
                projection.positions = None

    def positions_of(self, bound: dict[str, Any]) -> Tensor | None:
        """Return the positions that a call passes; None to count from the start of a row."""
        return None


class _RotaryGPT2(_RotaryAttention):
    """Self-attention of GPT-2, which gets the positions of its model."""

    projections = ("c_attn",)

    def positions_of(self, bound: dict[str, Any]) -> Tensor | None:
        if "position_ids" not in bound:
            raise TypeError(
                f"{type(self).__name__} must be called with position_ids, a tensor or None, which "
                "its model passes; without a model, pass position_ids=None to count them."
            )
        return bound["position_ids"]  # type: ignore[no-any-return]


def _convert_attention(attention: Any, rotation: Rotation) -> nn.Module:
    new: Any = reclass(attention, _RotaryGPT2, prefix="Rotary")
    new.call_arguments = arguments_of(attention, "hidden_states")
    new.c_attn = _convert_projection(new.c_attn, _Rotated, rotation, attention.num_heads)
    return new  # type: ignore[no-any-return]


def _convert_bert(attention: Any, rotation: Rotation) -> nn.Module:
    new: Any = reclass(attention, _RotaryAttention, prefix="Rotary")
    new.call_arguments = arguments_of(attention, "hidden_states")
    new.projections = ("query", "key") if hasattr(new, "query") else ("q_lin", "k_lin")
    heads = new.num_attention_heads if hasattr(new, "query") else new.n_heads
    for name in new.projections:
        setattr(new, name, _convert_projection(getattr(new, name), _Projection, rotation, heads))
    return new  # type: ignore[no-any-return]


def _convert_projection(
    projection: Any, kind: type[nn.Module], rotation: Rotation, heads: int
) -> nn.Module:
    new: Any = reclass(projection, kind, prefix="Rotary")
    new.rotary, new.heads, new.positions = rotation, heads, None
    return new  # type: ignore[no-any-return]


def _convert_embeddings(embeddings: nn.Module, rotation: Rotation) -> nn.Module:
    return remove_table(reclass(embeddings, WithoutPositions, prefix="Rotary"), rotation)


CONVERSIONS: dict[type | str, Callable[[Any, Rotation], nn.Module]] = {
    **named(remove_wpe, "gpt2.GPT2Model"),
    **named(_convert_attention, "gpt2.GPT2Attention"),
    **named(_convert_embeddings, *EMBEDDINGS),
    **named(remove_table, "distilbert.Embeddings"),
    **named(_convert_bert, *ENCODERS),
}
