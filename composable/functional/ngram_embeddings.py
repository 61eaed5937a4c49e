"""Hashed n-gram embeddings: add what a table has for the last tokens to each token's embedding.

Huang et al., "Over-Tokenized Transformer: Vocabulary is Generally Worth Scaling", ICML 2025,
https://arxiv.org/abs/2501.16975; Pagnoni et al., "Byte Latent Transformer: Patches Scale Better
Than Tokens", 2024, https://arxiv.org/abs/2412.09871; Cheng et al., "Conditional Memory via Scalable
Lookup", 2026, https://arxiv.org/abs/2601.07372. The signs: Weinberger et al., "Feature Hashing for
Large Scale Multitask Learning", ICML 2009, https://arxiv.org/abs/0902.2206
"""

from typing import Any

from torch import Tensor, nn

from composable._support.checks import (
    check_flag,
    check_module_name,
    checked,
    minimum,
    optional,
    within,
)

from ._reclass import other_setting, reclass
from ._token_embedding import BoundedEmbedding, connect, find_token_embedding
from .layers.ngrams import NGramEmbedding
from .replace_modules import replace_named

__all__ = ["ngram_embeddings"]


@checked(
    n=minimum(2),
    rows=optional(minimum(1)),
    megabytes=within(0, ends="()"),
    sparse=check_flag,
    target=check_module_name,
)
def ngram_embeddings(
    model: nn.Module,
    *,
    n: int = 3,
    rows: int | None = None,
    megabytes: float = 64.0,
    sparse: bool = False,
    target: str | None = None,
) -> nn.Module:
    r"""Add a row of a table for each of the last 2, 3, ..., `n` tokens to the token embedding.

    With the embedding $E$ of the model and a new table $T$, the embedding of token $x_t$ becomes

    $$E_{x_t} + \sum_{k=2}^{n} s(x_{t-k+1}, \dots, x_t) \; T_{h(x_{t-k+1}, \dots, x_t)}$$

    where $h$ hashes an n-gram to one of the rows and $s$ to a sign: see `embed_ngrams`. The table
    starts at zero, so the new model computes what the old one did until it is trained.
    `<embedding>.ngrams.weight` is added to the state dict; all other keys stay the same, and tied
    weights stay tied.

    The embedding is the result of `get_input_embeddings()`, as in Hugging Face, or the only
    `nn.Embedding` that is called on tokens. N-grams don't look across the documents of a row: where
    the forward method of the model, or of a part that contains the embedding, has an argument
    `document_ids`, `position_ids` (which restart at 0 in each document) or `attention_mask` (of
    tokens, for padding, or of pairs of tokens), its value has the boundaries.

    A cache does not have the tokens that it has seen. So the new model raises if it is called with
    one, and the configuration of a model of Hugging Face gets `use_cache=False`.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        n: Length of the longest n-gram, at least 2.
        rows: Number of rows of the table, which n-grams of all lengths share. By default as many as
            fit into `megabytes`.
        megabytes: Maximum size of the table, in units of 10**6 bytes. Its gradient and each buffer
            of the optimizer take as much again.
        sparse: Whether the gradient of the table is sparse, so that a step costs as much as its
            tokens have n-grams, however large the table is. It takes an optimizer for sparse
            gradients, such as `composable.optim.RowAdagrad`.
        target: The name of the token embedding in `model.named_modules()`, if it is not found.

    Returns:
        The new model; `model` itself if it has these n-grams already, or there is nothing to
        replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, the table is larger than `megabytes`, several
            embeddings may be the tokens', `target` is not the name of one, it is quantized, the
            model has other n-grams already, or is compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no token embedding.

    Example:
        >>> model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
        >>> ngram_embeddings(model, rows=1000)[0]
        WithNGramsEmbedding(
          256, 16
          (ngrams): NGramEmbedding(1000, 16, n=3)
        )
    """
    name = find_token_embedding(model, target, "ngram_embeddings")
    if name is None:
        return model
    embedding: Any = model.get_submodule(name)
    rows = _check_size(name, embedding, rows, megabytes)
    if isinstance(embedding, WithNGrams):
        held = embedding.ngrams
        if (len(held.weight), held.n, held.sparse) != (rows, n, sparse):
            found = f"{len(held.weight)}, {held.n} and {held.sparse}"
            raise other_setting(f"rows={rows}, n={n} and sparse={sparse}", found, name)
        return model

    def with_ngrams(_: str, module: nn.Module) -> nn.Module:
        weight: Any = module.weight
        new = reclass(module, WithNGrams, prefix="WithNGrams")
        new.ngrams = NGramEmbedding(
            rows, weight.shape[1], n=n, sparse=sparse, device=weight.device, dtype=weight.dtype
        ).train(module.training)
        return new  # type: ignore[no-any-return]

    new = replace_named(model, [name], with_ngrams)
    connect(new)
    return new


class WithNGrams(BoundedEmbedding):
    """A token embedding with n-grams; a base before the class of the embedding."""

    kind = "n-gram embeddings"
    ngrams: NGramEmbedding

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of each token, and of the n-grams that end at it."""
        documents = self.documents(input.shape)
        embedded: Tensor = super().forward(input) + self.ngrams(input, documents)
        return embedded


def _check_size(name: str, embedding: Any, rows: int | None, megabytes: float) -> int:
    """Return the number of rows, and raise a ValueError if they exceed the budget."""
    weight = embedding.weight
    if not weight.is_floating_point():
        raise ValueError(
            f"{name}.weight must have a floating-point dtype, not {weight.dtype}; add n-grams "
            "before quantization."
        )
    width = weight.shape[1] * weight.element_size()
    most = int(megabytes * 1e6 / width)
    if rows is None and most:
        return most
    if rows is None or rows > most:
        raise ValueError(
            f"rows={rows} must fit into megabytes={megabytes}: a row of {name or 'model'} takes "
            f"{width} bytes, so at most {most} fit; raise megabytes, or take fewer rows."
        )
    return rows
