"""Smear: let each token's embedding look at the previous token.

Records of modded-nanogpt since 2025, https://github.com/KellerJordan/modded-nanogpt
"""

from typing import Any

from torch import Tensor, nn

from composable._support.checks import check_module_name, checked, minimum

from ._reclass import other_setting, reclass
from ._token_embedding import BoundedEmbedding, connect, find_token_embedding
from .layers.smeared import smear_tokens
from .replace_modules import replace_named

__all__ = ["smear"]


@checked(channels=minimum(1), target=check_module_name)
def smear(model: nn.Module, *, channels: int = 12, target: str | None = None) -> nn.Module:
    r"""Add a gated share of the previous token's embedding to the embedding of each token.

    With the embedding $x_t$ of token $t$,

    $$x_t + s \, \sigma(w \cdot x_{t, 1 \dots c}) \, x_{t-1}$$

    where the scale $s$ and the weights $w$ of the first $c$ features are learned. They start at
    zero, so the new model computes what the old one did until it is trained. In the state dict,
    `<embedding>.smear_scale` and `<embedding>.smear_gate` are added; all other keys stay the same,
    and tied weights stay tied.

    The embedding, the boundaries of documents, over which it does not look, and the refusal of
    caches are as in `ngram_embeddings`.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        channels: Number $c$ of features that the gate reads, from 1 to the width of the embedding.
        target: The name of the token embedding in `model.named_modules()`, if it is not found.

    Returns:
        The new model; `model` itself if it is smeared already, or there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `channels` is out of range, several embeddings may be the tokens', `target` is
            not the name of one, it is quantized, the model has another smear already, or is
            compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no token embedding.

    Example:
        >>> model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
        >>> list(smear(model)[0].state_dict())
        ['weight', 'smear_gate', 'smear_scale']
    """
    name = find_token_embedding(model, target, "smear")
    if name is None:
        return model
    embedding: Any = model.get_submodule(name)
    weight = embedding.weight
    if not weight.is_floating_point():
        raise ValueError(
            f"{name}.weight must have a floating-point dtype, not {weight.dtype}; smear before "
            "quantization."
        )
    if channels > weight.shape[1]:
        raise ValueError(
            f"channels={channels} must be at most {weight.shape[1]}, the width of "
            f"{name or 'model'}."
        )
    if isinstance(embedding, WithSmear):
        if len(embedding.smear_gate) != channels:
            raise other_setting(f"channels={channels}", len(embedding.smear_gate), name)
        return model

    def smeared(_: str, module: nn.Module) -> nn.Module:
        new = reclass(module, WithSmear, prefix="WithSmear")
        new.smear_gate = nn.Parameter(weight.new_zeros(channels, requires_grad=False))
        new.smear_scale = nn.Parameter(weight.new_zeros(1, requires_grad=False))
        return new  # type: ignore[no-any-return]

    new = replace_named(model, [name], smeared)
    connect(new)
    return new


class WithSmear(BoundedEmbedding):
    """A token embedding that adds the previous one; a base before the class of the embedding."""

    kind = "smeared embeddings"
    smear_gate: Tensor
    smear_scale: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of each token, and a share of that before it."""
        documents = self.documents(input.shape)
        embedded = super().forward(input)
        return smear_tokens(embedded, self.smear_gate, self.smear_scale, document_ids=documents)
