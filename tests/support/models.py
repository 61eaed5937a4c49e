"""Small models, and their weights."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from composable.functional import (
    Rotation,
    alibi_bias,
    register_alibi,
    register_attention,
    register_gated_linear_units,
    register_projections,
    register_rotary,
)
from composable.utils.reproducibility import seed_context

FEATURES, CLASSES, SIDE = 4, 3, 8
WORDS, LENGTH, WIDTH = 7, 5, 8


def seeded(build: Callable[[], Any], seed: int = 0) -> Any:
    """Build a model with the weights of the seed."""
    with seed_context(seed):
        return build()


def linear(seed: int = 0) -> nn.Module:
    """Build a linear classifier."""
    return seeded(lambda: nn.Linear(FEATURES, CLASSES), seed)


def mlp(*, dropout: float = 0.0, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Build a model of two layers, with the weights of the seed."""
    with seed_context(seed):
        layers = [nn.Linear(FEATURES, 5), nn.ReLU(), nn.Dropout(dropout), nn.Linear(5, CLASSES)]
        return nn.Sequential(*layers).to(dtype)


def conv_net(
    *, seed: int = 0, one_by_one: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a model with strided convolution, batch norm, max-pool, dropout and group norm.

    It takes images of other sizes too. With `one_by_one` it treats examples so: without dropout,
    and normalised each by itself.
    """
    with seed_context(seed):
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4) if one_by_one else nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Dropout(0.0 if one_by_one else 0.25),
            nn.Sequential(  # what takes images of any size
                nn.AdaptiveAvgPool2d(SIDE // 4), nn.GroupNorm(1, 4), nn.Flatten()
            ),
            nn.Linear(4 * (SIDE // 4) ** 2, CLASSES),
        ).to(dtype)


class Places(nn.Embedding):
    """Adds to each token what is learned of its place."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class Attention(nn.Linear):
    """Causal attention of two heads."""

    rotation: Rotation | None = None
    biased = False
    heads = 2

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)

    def bias_of(self, x: Tensor) -> Tensor | None:
        if not self.biased:
            return None
        length = x.shape[1]
        to_come = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        bias = alibi_bias(2, length, device=x.device, dtype=x.dtype)
        return bias.masked_fill(to_come, -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).unflatten(-1, (3, 2, self.in_features // 2))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if self.rotation is not None:
            query, key = self.rotation(query), self.rotation(key)
        bias = self.bias_of(x)
        attended = scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None)
        return attended.transpose(1, 2).flatten(2)


register_attention(Attention, heads="heads")


@register_alibi(Places)
def leave_out(places: Places, max_sequence_length: int) -> nn.Module:
    return nn.Identity()


@register_alibi(Attention)
def add_biases(attention: Attention, max_sequence_length: int) -> nn.Module:
    attention.biased = True
    return attention


@register_rotary(Places)
def remove_places(places: Places, rotation: Rotation) -> nn.Module:
    return nn.Identity()


@register_rotary(Attention)
def add_rotation(attention: Attention, rotation: Rotation) -> nn.Module:
    attention.rotation = rotation
    return attention


class Tied(nn.Module):
    """A transformer in small, whose head is its embedding, with a parameter without a role."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 4), nn.Parameter(torch.zeros(1, 5, 4))
        self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.LayerNorm((2, 4))
        self.mixer, self.head = nn.Linear(4, 8, bias=False), nn.Linear(4, 9)
        self.head.weight = self.tokens.weight


class Hidden(nn.Sequential):
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))


register_gated_linear_units(Hidden, linear="0", activation="1")
register_projections(Hidden, output="2", value="0")  # as attention, for lack of a layer of values


class ProjectedAttention(nn.Module):
    """Causal attention of two heads, whose queries, keys and values a layer makes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).flatten(2)


register_projections(ProjectedAttention, value="qkv", fused=True)


class LanguageModel(nn.Module):
    """Embeddings, causal attention and two feed-forward blocks, and the logits of each token."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = Places(LENGTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(WIDTH)
        self.hidden_norm = nn.LayerNorm(WIDTH)
        self.hidden1, self.hidden2 = Hidden(WIDTH), Hidden(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.places(self.words(input_ids))
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.hidden1(self.hidden_norm(x)))
        x = x + self.dropout(self.hidden2(x))
        return self.score(x).movedim(-1, 1)  # classes second, where cross_entropy has them


def language_model(
    *, seed: int = 0, one_by_one: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a transformer of one block, with dropout unless `one_by_one`."""
    with seed_context(seed):
        return LanguageModel(0.0 if one_by_one else 0.25).to(dtype)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers on the CPU, by name."""
    return {name: tensor.detach().clone().cpu() for name, tensor in model.state_dict().items()}


Tensors = Mapping[str, Tensor] | Iterable[Tensor]


def same(ours: Tensors, theirs: Tensors) -> bool:
    """Return whether two state dicts, or two lists of tensors, are equal to the bit."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        ours, theirs = ours.values(), [theirs[name] for name in ours]
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
