"""Hashed n-gram embeddings: add what a table has for the last tokens to each token's embedding.

Huang et al., "Over-Tokenized Transformer: Vocabulary is Generally Worth Scaling", ICML 2025,
https://arxiv.org/abs/2501.16975; Pagnoni et al., "Byte Latent Transformer: Patches Scale Better
Than Tokens", 2024, https://arxiv.org/abs/2412.09871; Cheng et al., "Conditional Memory via Scalable
Lookup", 2026, https://arxiv.org/abs/2601.07372. The signs: Weinberger et al., "Feature Hashing for
Large Scale Multitask Learning", ICML 2009, https://arxiv.org/abs/0902.2206
"""

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_count, check_module, check_range
from composable._support.surgery import report_nothing

from ._reclass import keeps_forward_of, reclass
from .layers.ngrams import NGramEmbedding
from .replace_modules import replace_modules

__all__ = ["ngram_embeddings"]

BOUNDARIES = ("document_ids", "position_ids", "attention_mask")
REFUSED = {
    "inputs_embeds": "pass input_ids, from which the n-grams are read",
    **dict.fromkeys(
        ("past_key_values", "past_key_value", "layer_past", "cache_params"),
        "n-grams need the tokens before those that are passed, so pass whole rows; "
        "model.generate(..., use_cache=False) does",
    ),
}


def ngram_embeddings(
    model: nn.Module,
    *,
    n: int = 3,
    rows: int | None = None,
    megabytes: float = 64.0,
    target: str | None = None,
) -> nn.Module:
    r"""Add a row of a table for each of the last 2, 3, ..., `n` tokens to the token embedding.

    With the embedding $E$ of the model and a new table $T$, the embedding of token $x_t$ becomes

    $$E_{x_t} + \sum_{k=2}^{n} s(x_{t-k+1}, \dots, x_t) \; T_{h(x_{t-k+1}, \dots, x_t)}$$

    where $h$ hashes an n-gram to one of the rows and $s$ to a sign: see `embed_ngrams`. The table
    starts at zero, so the new model computes what the old one did until it is trained.
    `<embedding>.ngrams.weight` is added to the state dict; all other keys stay the same, and tied
    weights stay tied.

    The embedding is that of `get_input_embeddings()`, as models of Hugging Face have it, or the
    only `nn.Embedding` that is called on tokens. N-grams don't look across the documents of a row:
    where the forward method of the model, or of a part that contains the embedding, has an argument
    `document_ids`, `position_ids` (which restart at 0 in each document) or `attention_mask` (of
    tokens, for padding), its value has the boundaries.

    A cache does not have the tokens that it has seen. So the new model raises if it is called with
    one, and the configuration of a model of Hugging Face gets `use_cache=False`: `generate` passes
    whole rows.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        n: Length of the longest n-gram, at least 2.
        rows: Number of rows of the table, which n-grams of all lengths share. By default as many as
            fit into `megabytes`.
        megabytes: Maximum size of the table, in units of 10**6 bytes. Its gradient and each buffer
            of the optimizer take as much again.
        target: The name of the token embedding in `model.named_modules()`, if it is not found.

    Returns:
        The new model; `model` itself if it has these n-grams already, or there is nothing to
        replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, the table is larger than `megabytes`, several
            embeddings may be that of the tokens, `target` is not the name of one, it is quantized,
            the model has other n-grams already, or is compiled or wrapped for distributed training.

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
    check_module("model", model)
    check_count("n", n, 2)
    check_range("megabytes", megabytes, 0, ends="()")
    if rows is not None:
        check_count("rows", rows, 1)
    name = _token_embedding(model, target)
    if name is None:
        sought = "the nn.Embedding of the tokens, or what get_input_embeddings() returns"
        report_nothing("ngram_embeddings", sought)
        return model
    embedding: Any = model.get_submodule(name)
    rows = _check_size(name, embedding, rows, megabytes)
    if isinstance(embedding, WithNGrams):
        _check_same(name, embedding.ngrams, rows, n)
        return model

    def rule(at: str, module: nn.Module) -> nn.Module:
        if at != name:
            return module
        weight: Any = module.weight
        new = reclass(module, WithNGrams, prefix="WithNGrams")
        new.ngrams = NGramEmbedding(
            rows, weight.shape[1], n=n, device=weight.device, dtype=weight.dtype
        ).train(module.training)
        return new  # type: ignore[no-any-return]

    new = replace_modules(model, rule).model
    for module, parent in _parents(new):
        parent.register_forward_pre_hook(
            partial(_note_boundaries, module, tuple(_parameters(parent))), with_kwargs=True
        )
        parent.register_forward_hook(partial(_forget_boundaries, module))
    _disable_caches(new)
    return new


class WithNGrams(nn.Module):
    """A token embedding with n-grams; a base before the class of the embedding."""

    ngrams: NGramEmbedding
    boundaries: Mapping[str, Tensor | None] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of each token, and of the n-grams that end at it."""
        given = self.boundaries
        documents = None if given is None else _documents(given, input.shape)
        embedded: Tensor = super().forward(input) + self.ngrams(input, documents)
        return embedded


# --- the token embedding ---


def _token_embedding(model: nn.Module, target: str | None) -> str | None:
    """Return the name of the token embedding, or None if there is none."""
    named = dict(model.named_modules())
    found = {id(module): name for name, module in named.items() if isinstance(module, nn.Embedding)}
    given = _given(named, found)
    if target is not None:
        if not isinstance(target, str):
            raise TypeError(f"target={target!r} must be the name of a module, or None.")
        if not isinstance(named.get(target), nn.Embedding):
            known = ", ".join(map(repr, found.values())) or "none"
            raise ValueError(
                f"target={target!r} must be the name of an nn.Embedding of the model, which has "
                f"{known}."
            )
        if inner := given.get(id(named[target])):
            raise ValueError(
                f"target={target!r} must be an embedding that is called: the model calls those "
                f"that are tied to it, {', '.join(inner)}; pass one of them."
            )
        return target
    given = {number: inner for number, inner in given.items() if not inner}
    called = {id(m) for m in named.values() if _is_called(m)}
    names = [name for number, name in found.items() if number in (given.keys() or called)]
    if len(names) > 1:
        raise ValueError(
            f"target=None must be the name of the token embedding, one of {', '.join(names)}; pass "
            f"target={names[0]!r}, for example."
        )
    return names[0] if names else None


def _given(named: Mapping[str, nn.Module], found: Mapping[int, str]) -> dict[int, list[str]]:
    """Return the embeddings that `get_input_embeddings` returns, by identity.

    Each with the embeddings of the same weight that modules inside its owner have: an
    encoder-decoder model has one that it does not call, to which those of its two parts are tied.
    """
    owners: dict[int, list[str]] = {}
    for path, module in named.items():
        embedding = _input_embeddings(module)
        if id(embedding) in found:
            owners.setdefault(id(embedding), []).append(path)
    weights = {number: named[found[number]].weight for number in owners}
    return {
        number: [
            found[other]
            for other, within in owners.items()
            if weights[other] is weights[number]
            and not set(within) & set(paths)
            and any(_inside(one, path) for one in within for path in paths)
        ]
        for number, paths in owners.items()
    }


def _inside(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}."))


def _input_embeddings(module: nn.Module) -> Any:
    get = getattr(module, "get_input_embeddings", None)
    try:
        return get() if callable(get) else None
    except NotImplementedError:  # a model of Hugging Face that has none
        return None


def _is_called(module: nn.Module) -> bool:
    return isinstance(module, WithNGrams) or keeps_forward_of(nn.Embedding, module)


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


def _check_same(name: str, ngrams: NGramEmbedding, rows: int, n: int) -> None:
    if (len(ngrams.weight), ngrams.n) != (rows, n):
        raise ValueError(
            f"rows={rows} and n={n} must be {len(ngrams.weight)} and {ngrams.n}, with which "
            f"{name or 'model'} is converted already; convert the original model instead."
        )


# --- boundaries and caches ---


def _parents(model: nn.Module) -> Iterator[tuple[WithNGrams, nn.Module]]:
    """Iterate over the modules around the embedding that take boundaries or caches."""
    modules = dict(model.named_modules(remove_duplicate=False))
    seen = set()
    for path, module in modules.items():
        if not isinstance(module, WithNGrams) or not path:
            continue
        parts = path.split(".")
        for depth in range(len(parts)):
            parent = modules[".".join(parts[:depth])]
            taken = {*BOUNDARIES, *REFUSED} & set(_parameters(parent))
            if taken and id(parent) not in seen:
                seen.add(id(parent))
                yield module, parent


def _parameters(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _note_boundaries(
    embedding: WithNGrams,
    names: tuple[str, ...],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Note the boundaries that a module is called with, for its embedding; refuse a cache."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name, advice in REFUSED.items():
        if given.get(name) is not None:
            raise ValueError(f"{name} must be None in a model with n-gram embeddings: {advice}.")
    noted = {name: given.get(name) for name in BOUNDARIES if name in names}
    embedding.boundaries = {**(embedding.boundaries or {}), **noted}


def _forget_boundaries(embedding: WithNGrams, *_: Any) -> None:
    """Clear what was noted, which holds for one call."""
    embedding.boundaries = None


def _documents(given: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Return the number of the document of each token, from the arguments of a model."""
    if (documents := given.get("document_ids")) is not None:
        return documents  # type: ignore[no-any-return]
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is not None:
        documents = (positions == 0).long().cumsum(-1)
    if mask is not None and mask.shape == shape:  # otherwise it is one of pairs of tokens
        documents = (mask != 0) + 2 * (0 if documents is None else documents)
    return documents


def _disable_caches(model: nn.Module) -> None:
    for module in model.modules():
        for config in (getattr(module, name, None) for name in ("config", "generation_config")):
            if getattr(config, "use_cache", None) is not None:
                config.use_cache = False  # type: ignore[union-attr]
