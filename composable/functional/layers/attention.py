"""The call of attention within a block: what methods change before, around and after it."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import (
    dropout,
    linear,
    multi_head_attention_forward,
    scaled_dot_product_attention,
    softmax,
)
from torch.overrides import TorchFunctionMode

from composable._support.recomputation import cannot_recompute


class AttentionCall(NamedTuple):
    """The arguments of `scaled_dot_product_attention`, and the inputs of the block.

    Args:
        query: Queries of all heads.
        key: Keys, including cached ones. Grouped heads share them.
        value: Values, including cached ones.
        mask: Which keys a query attends to, or what is added to its scores.
        is_causal: Whether a query attends to this and earlier keys. Then there is no mask.
        options: The other arguments, by name.
        hidden: The inputs of the block.
    """

    query: Float[Tensor, "*batch heads queries size"]
    key: Float[Tensor, "*batch groups keys size"]
    value: Float[Tensor, "*batch groups keys size"]
    mask: Tensor | None
    is_causal: bool
    options: Mapping[str, Any]
    hidden: Float[Tensor, "*batch queries width"]

    def seen(self) -> Bool[Tensor, "... queries keys"] | None:
        """Return which keys each query attends to by the mask; None without a mask."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return self.mask
        return self.mask > torch.finfo(self.mask.dtype).min / 2

    def own_values(self) -> Float[Tensor, "*batch groups queries size"]:
        """Return the value of the token of each query, without cached values."""
        count, seen = self.query.shape[-2], self.seen()
        if self.value.shape[-2] == count:
            return self.value
        if seen is None:
            return self.value[..., -count:, :]
        # A cache of a fixed size has free places at its end: a token is the last one that it sees.
        seen = seen[(None,) * (self.value.ndim - seen.ndim)]  # a mask may have no batch and heads
        places = torch.arange(seen.shape[-1], device=seen.device)
        last = (places * seen.any(-3, keepdim=True)).amax(-1).unsqueeze(-1)
        return self.value.take_along_dim(last, -2)


Attend: TypeAlias = Callable[[AttentionCall], Tensor]


def attend(call: AttentionCall) -> Float[Tensor, "*batch heads queries size"]:
    """Compute the attention."""
    return scaled_dot_product_attention(
        call.query,
        call.key,
        call.value,
        attn_mask=call.mask,
        is_causal=call.is_causal,
        **call.options,
    )


class AttentionChange(nn.Module):
    """What a method does with a call of attention, and the parameters that it adds.

    Args:
        setting: The hyperparameters.
    """

    method: ClassVar[str]

    def __init__(self, **setting: Any) -> None:
        super().__init__()
        self.setting = setting

    def attach(self, name: str, block: nn.Module) -> None:
        """Adapt to a block, when it is added to it and when the positions of the block change."""

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Change the arguments of the block that are passed by name."""
        return inputs

    def forward(self, attend: Attend, call: AttentionCall) -> Tensor:
        """Compute the attention by `attend`, with a changed call or a changed result."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the hyperparameters."""
        return ", ".join(f"{name}={value!r}" for name, value in self.setting.items())


ORDER = (
    "sliding_window",
    "partial_key_offset",
    "qk_norm",
    "exclusive_self_attention",
    "attention_output_gate",
)
"""The methods, from the inside out: whichever is added first, one inside gets a changed call."""


class ChangedAttention(nn.Module):
    """A block with changes of its call of attention; a base before the class of the block."""

    attention_changes: nn.ModuleDict
    attention_heads: int
    by_hand = False
    """Whether the block computes its attention from products and a softmax."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the block."""
        changes: Any = [self.attention_changes[m] for m in ORDER if m in self.attention_changes]
        for change in changes:
            kwargs = change.prepare(kwargs)
        hidden = args[0] if args else next(iter(kwargs.values()))
        kind = _ByHand if self.by_hand else _Interception
        interception = kind(changes, self.attention_heads, hidden)
        with interception:  # torch.compile can't trace "as"
            outputs = super().forward(*args, **kwargs)
        if interception.calls != 1:
            raise ValueError(
                f"{type(self).__name__} must call scaled_dot_product_attention once in its forward "
                f"method, not {interception.calls} times, for {changes[0].method} to act; for a "
                "model of Hugging Face, call model.set_attn_implementation('sdpa')."
            )
        return outputs


_OF_TORCH = tuple(inspect.signature(multi_head_attention_forward).parameters)


class _Interception(TorchFunctionMode):
    """Applies changes to the call of attention in a block: within a `with`, as all modes."""

    def __init__(self, changes: list[AttentionChange], heads: int, hidden: Tensor) -> None:
        super().__init__()
        self.changes, self.heads, self.hidden, self.calls = changes, heads, hidden, 0
        self.with_graph = torch.is_grad_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # The second calls the first where no mode sees it.
        if func in (scaled_dot_product_attention, multi_head_attention_forward):
            if torch.is_grad_enabled() != self.with_graph:
                raise cannot_recompute(f"{self.changes[0].method} alone", "checkpoint whole blocks")
            self.calls += 1
            compute = self.changed if func is scaled_dot_product_attention else self.of_torch
            return compute(*args, **kwargs)
        if func is Tensor.unflatten:  # torch.compile can't trace the method within a mode
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    def changed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        shape = query.shape
        if shape[-3] != self.heads:
            query, attn_mask = self.unpacked(query, attn_mask)
            enable_gqa = True
        options = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
        call = AttentionCall(query, key, value, attn_mask, is_causal, options, self.hidden)
        compute = attend
        for change in self.changes:
            compute = partial(change, compute)
        return compute(call).reshape(*shape[:-1], value.shape[-1])

    def of_torch(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Compute what `multi_head_attention_forward` does, of inputs `[length, batch, width]`."""
        given: dict[str, Any] = {"training": True, "need_weights": True}
        given |= {**dict(zip(_OF_TORCH, args, strict=False)), **kwargs}
        query, p = given["query"], given["dropout_p"] if given["training"] else 0.0
        masks = (given.get(name) for name in ("key_padding_mask", "attn_mask", "bias_k"))
        plain = query is given["key"] is given["value"] and all(mask is None for mask in masks)
        if not plain or given["need_weights"] or given["add_zero_attn"]:
            raise ValueError(
                f"{self.changes[0].method} needs nn.MultiheadAttention to be called as "
                "attention(x, x, x, need_weights=False), without masks, bias_k and add_zero_attn; "
                "or to be replaced by a call of scaled_dot_product_attention."
            )
        self.hidden = query.transpose(0, 1)
        parts = linear(self.hidden, given["in_proj_weight"], given["in_proj_bias"])
        parts = torch.unflatten(parts, -1, (3, given["num_heads"], -1)).permute(2, 0, 3, 1, 4)
        output = self.changed(parts[0], parts[1], parts[2], dropout_p=p).permute(2, 0, 1, 3)
        return linear(output.flatten(2), given["out_proj_weight"], given["out_proj_bias"]), None

    def unpacked(self, query: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Undo a packing: for one token, Hugging Face passes grouped heads as queries of a head."""
        if query.shape[-3] * query.shape[-2] != self.heads:
            raise ValueError(
                f"heads={self.heads}, which is registered for the block, must be the number of its "
                f"heads, {query.shape[-3]}; pass the right attribute to register_attention."
            )
        if mask is not None and mask.shape[-3] != 1:
            mask = mask.reshape(*mask.shape[:-3], self.heads, 1, -1)
        return query.reshape(*query.shape[:-3], self.heads, 1, -1), mask


class _ByHand(_Interception):
    """Applies changes to attention that is computed as in torchvision's Swin.

    That is a linear layer for queries, keys and values, the product of the scaled queries and the
    keys, a mask that is added, a softmax, dropout, and the product with the values.
    """

    query: Tensor | None = None
    mask: Tensor | None = None
    dropout_p = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is linear and self.query is None:
            self.hidden = args[0]
        elif func is Tensor.matmul and self.query is None:
            self.query, self.key = args[0] * args[0].shape[-1] ** 0.5, args[1].mT
            return self.query.new_zeros(*self.query.shape[:-1], self.key.shape[-2])
        elif func is softmax and self.mask is None:
            self.mask = args[0]
            return self.mask
        elif func is dropout and self.calls == 0:
            self.dropout_p = kwargs["p"] if kwargs["training"] else 0.0
            return args[0]
        elif func is Tensor.matmul and self.query is not None:
            self.calls += 1
            return self.changed(self.query, self.key, args[1], self.mask, self.dropout_p)
        return func(*args, **(kwargs or {}))
