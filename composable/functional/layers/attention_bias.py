"""Linear attention biases, and the conversions of Hugging Face models to them."""

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from composable._support.calls import Arguments, arguments_of
from composable._support.checks import check_count, check_place
from composable._support.registry import named

from .._reclass import reclass

IMPLEMENTATIONS = ("eager", "sdpa")


def alibi_slopes(
    heads: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " heads"]:
    r"""Return the slope of each head: $2^{-8 i / n}$ for head $i$ of $n$, counted from 1.

    If $n$ is not a power of two, the first heads use the slopes of the next lower power $p$, and
    the others use the first, third, fifth, ... slope of $2p$ heads.

    Args:
        heads: Number of heads, 1 or more.
        device: Device of the slopes.
        dtype: Dtype of the slopes.

    Raises:
        TypeError: `heads` is not an integer, or `dtype` is not a floating-point dtype.
        ValueError: `heads` is below 1, or the device does not exist.

    Example:
        >>> alibi_slopes(8)[:3]
        tensor([0.5000, 0.2500, 0.1250])
        >>> alibi_slopes(3)
        tensor([0.0625, 0.0039, 0.2500])
    """
    check_count("heads", heads, 1)
    check_place(device, dtype)
    power = 1 << (heads.bit_length() - 1)
    # Computed on the device: a copy of a list would synchronize.
    first = torch.arange(1, power + 1, device=device, dtype=dtype) * (-8 / power)
    rest = (torch.arange(heads - power, device=device, dtype=dtype) * 2 + 1) * (-4 / power)
    return torch.cat([first, rest]).exp2()


def alibi_bias(
    heads: int,
    length: int,
    *,
    past: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " heads length keys"]:
    r"""Return the biases of the attention scores: $-m_h |i - j|$.

    Causal attention needs a causal mask in addition.

    Args:
        heads: Number of heads, 1 or more.
        length: Number of queries.
        past: Number of cached keys, before the keys of the queries.
        device: Device of the biases.
        dtype: Dtype of the biases.

    Returns:
        A bias for each head, each query and each of the `past + length` keys.

    Raises:
        TypeError: A number is not an integer, or `dtype` is not a floating-point dtype.
        ValueError: `heads` is below 1, another number is negative, or the device does not exist.

    Example:
        >>> alibi_bias(1, 2, past=1) * 256
        tensor([[[-1., -0., -1.],
                 [-2., -1., -0.]]])
    """
    check_count("length", length)
    check_count("past", past)
    check_place(device, dtype)
    keys = torch.arange(past + length, device=device)
    return _biases(heads, keys[past:], keys, dtype)


def _biases(heads: int, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    distances = (rearrange(queries, "queries -> queries 1") - keys).abs()
    slopes = alibi_slopes(heads, device=keys.device, dtype=dtype)
    return -rearrange(slopes, "heads -> heads 1 1") * distances


class NoPositions(nn.Module):
    """A replacement of position embeddings that adds nothing, at any position."""

    def forward(self, position_ids: Int[Tensor, "..."]) -> Int[Tensor, ""]:
        """Return zero."""
        return position_ids.new_zeros(())


class NoRotation(NoPositions):
    """A replacement of rotary embeddings that rotates by no angle, at any position."""

    def forward(self, hidden_states: Tensor, position_ids: Any = None) -> Any:  # type: ignore[override]
        """Return the cosine and the sine of 0."""
        return hidden_states.new_ones(1, 1, 1), hidden_states.new_zeros(1, 1, 1)


class WithoutPositions(nn.Module):
    """The embeddings of BERT and RoBERTa, for sequences that are longer than their tables."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        # Default token types are looked up by position, in a buffer as long as the position table.
        # Position 0 is always valid, and all its entries are the same.
        given: Any = input_ids if inputs_embeds is None else inputs_embeds
        first = torch.zeros((1, given.shape[1]), dtype=torch.long, device=given.device)
        embeddings: Tensor = super().forward(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=first,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return embeddings


class _Biased(nn.Module):
    """Self-attention with linear biases in its mask; a base before the class of Hugging Face."""

    config: Any
    is_causal: bool
    layer_idx: int
    call_arguments: Arguments

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the attention with biased scores."""
        _check_implementation(self.config)
        bound = self.call_arguments.bind(args, kwargs)
        hidden, cache = bound.pop("hidden_states"), self.call_arguments.cache_in(bound)
        past, keys = 0, hidden.shape[1]
        if cache is not None:
            past = cache.get_seq_length(self.layer_idx)
            keys, _ = cache.get_mask_sizes(hidden.shape[1], self.layer_idx)
        # Without a mask, "sdpa" is causal, and "eager" is not.
        causal = bound.get("is_causal")
        causal = self.is_causal if causal is None else causal
        bound["attention_mask"] = _biased_mask(
            bound.get("attention_mask"),
            hidden,
            heads=self.config.num_attention_heads,
            past=past,
            keys=keys,
            causal=causal and self.config._attn_implementation == "sdpa",
        )
        return super().forward(hidden, **bound)


def _biased_mask(
    mask: Tensor | None, hidden: Tensor, *, heads: int, past: int, keys: int, causal: bool
) -> Tensor:
    """Add biases to a float mask, a bool mask (in "sdpa" only), or no mask."""
    length, device = hidden.shape[1], hidden.device
    query_at = torch.arange(length, device=device) + past
    key_at = torch.arange(keys, device=device)
    dtype = torch.promote_types(hidden.dtype, torch.float32)  # rounded once, at the end
    biases = rearrange(_biases(heads, query_at, key_at, dtype), "... -> 1 ...")
    if mask is None and causal:
        mask = key_at <= rearrange(query_at, "queries -> queries 1")
    if mask is not None and mask.dtype == torch.bool:
        biases = biases.masked_fill(~mask, -torch.inf)  # the semantics of "sdpa"
    elif mask is not None:
        biases = biases + mask
    return biases.to(hidden.dtype)


def _check_implementation(config: Any) -> None:
    if config._attn_implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"attn_implementation={config._attn_implementation!r} must be 'sdpa' or 'eager' for "
            "linear biases; call model.set_attn_implementation('sdpa')."
        )


def _convert_attention(attention: Any, max_sequence_length: int) -> nn.Module:
    _check_implementation(attention.config)
    new: Any = reclass(attention, _Biased, prefix="Alibi")
    new.call_arguments = arguments_of(attention, "hidden_states", "attention_mask")
    new.config.max_position_embeddings = max_sequence_length
    return new  # type: ignore[no-any-return]


def _convert_embeddings(embeddings: nn.Module, max_sequence_length: int) -> nn.Module:
    new = reclass(embeddings, WithoutPositions, prefix="Alibi")
    return remove_table(new, max_sequence_length)


def remove_wpe(model: Any, _: Any) -> nn.Module:
    """Remove the position embeddings of GPT-2."""
    model.wpe = NoPositions()
    return model  # type: ignore[no-any-return]


def remove_table(embeddings: nn.Module, _: Any) -> nn.Module:
    """Remove the position embeddings of BERT and its like."""
    embeddings.position_embeddings = NoPositions()
    return embeddings


def _remove_rotation(model: nn.Module, max_sequence_length: int) -> nn.Module:
    model.rotary_emb = NoRotation()
    return model


BERTS = ("bert.Bert", "roberta.Roberta", "xlm_roberta.XLMRoberta")
ROTATED = ("gpt_neox.GPTNeoX", "llama.Llama", "mistral.Mistral", "qwen2.Qwen2", "qwen3.Qwen3")
EMBEDDINGS = [f"{one}Embeddings" for one in BERTS]
ENCODERS = [f"{one}SelfAttention" for one in (*BERTS, "distilbert.DistilBert")]
DECODERS = [f"{one}Attention" for one in ("gpt2.GPT2", *ROTATED)]
CONVERSIONS: dict[type | str, Callable[[Any, int], nn.Module]] = {
    **named(_convert_embeddings, *EMBEDDINGS),
    **named(remove_table, "distilbert.Embeddings"),
    **named(remove_wpe, "gpt2.GPT2Model"),
    **named(_remove_rotation, *(f"{one}Model" for one in ROTATED)),
    **named(_convert_attention, *ENCODERS, *DECODERS),
}
