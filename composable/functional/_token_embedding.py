"""The token embedding of a model, and the boundaries of documents in each call of it."""

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from composable._support.calls import cache_types
from composable._support.checks import check_tensor
from composable._support.embeddings import input_embeddings
from composable._support.recomputation import cannot_recompute, in_backward
from composable._support.surgery import report_nothing

from ._reclass import keeps_forward_of
from ._trace import CALLED_AGAIN
from .set_sequence_length import attended

BOUNDARIES = ("document_ids", "position_ids", "attention_mask")
_WHOLE_ROWS = (
    "they need the tokens before those that are passed, so pass whole rows; "
    "model.generate(..., use_cache=False) does"
)
_CACHES = "cache past_key_values past_key_value layer_past cache_params use_cache"
REFUSED = dict.fromkeys(_CACHES.split(), _WHOLE_ROWS)
REFUSED["inputs_embeds"] = "pass input_ids, which they are read from"
_ADVICE = "pass a mask of tokens or of pairs of tokens, or document_ids"


class BoundedEmbedding(nn.Module):
    """A token embedding that depends on earlier tokens; a base before the class of the embedding.

    `connect` notes the boundaries in each call of the model.
    """

    kind = "embeddings of earlier tokens"
    connected: bool = False
    boundaries: dict[int, Mapping[str, Tensor | None]] | None = None
    """What each module around it is called with, from the outside in; None if none takes any."""
    called_again: bool = False

    def documents(self, shape: torch.Size) -> Tensor | None:
        """Return the number of the document of each token; None for one document a row.

        Raises:
            RuntimeError: It is called, or recomputed, without the module that notes the boundaries.
        """
        if self.boundaries is None:
            return None
        if not self.boundaries and in_backward():
            raise cannot_recompute(f"{self.kind} alone", "checkpoint blocks, or the whole model")
        if not self.boundaries:
            raise RuntimeError(
                f"{self.kind} need the boundaries of documents, with which a model is called"
                + (
                    f", which {CALLED_AGAIN}"
                    if self.called_again
                    else ": call the model itself, not model.forward, nor the embedding alone or a "
                    "copy of it."
                )
            )
        calls = sorted(self.boundaries.items())
        return _documents({name: one for _, given in calls for name, one in given.items()}, shape)


def connect(model: nn.Module) -> None:
    """Pass the boundaries of each call to the embeddings that are new, and refuse caches."""
    for depth, (module, parent) in enumerate(list(_parents(model))):
        names = tuple(_parameters(parent))
        note = partial(_note_boundaries, module, depth, names, cache_types())
        parent.register_forward_pre_hook(note, with_kwargs=True)
        parent.register_forward_hook(partial(_forget_boundaries, module, depth), always_call=True)
        module.boundaries = {}
    for one in model.modules():
        if isinstance(one, BoundedEmbedding):
            one.connected = True
    _disable_caches(model)


def find_token_embedding(model: nn.Module, target: str | None, method: str = "") -> str | None:
    """Return the name of the token embedding, or None if there is none: with a warning of a method.

    Args:
        model: Any module.
        target: The name that the user gives, or None to find it.
        method: The method that warns, if one does.

    Raises:
        TypeError: `target` is of the wrong type.
        ValueError: There are several, or `target` is not the name of one.
    """
    named = dict(model.named_modules())
    found = {id(module): name for name, module in named.items() if isinstance(module, nn.Embedding)}
    given = _given(named, found)
    if target is not None:
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
    if not names and method:
        sought = "the nn.Embedding of the tokens, or what get_input_embeddings() returns"
        report_nothing(method, sought)
    return names[0] if names else None


def _given(named: Mapping[str, nn.Module], found: Mapping[int, str]) -> dict[int, list[str]]:
    """Return the embeddings that `get_input_embeddings` returns, by identity.

    Each comes with the embeddings inside its owner that share its weight: an encoder-decoder model
    does not call its shared embedding, to which both parts tie theirs.
    """
    owners: dict[int, list[str]] = {}
    for path, module in named.items():
        embedding = input_embeddings(module)
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


def _is_called(module: nn.Module) -> bool:
    return isinstance(module, BoundedEmbedding) or keeps_forward_of(nn.Embedding, module)


def _parents(model: nn.Module) -> Iterator[tuple[BoundedEmbedding, nn.Module]]:
    """Iterate over the modules around the embedding that take boundaries or caches."""
    modules = dict(model.named_modules(remove_duplicate=False))
    seen = set()
    for path, module in modules.items():
        if not isinstance(module, BoundedEmbedding) or module.connected or not path:
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
    embedding: BoundedEmbedding,
    depth: int,
    names: tuple[str, ...],
    caches: tuple[type, ...],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Note the boundaries that a module is called with, for its embedding; refuse a cache."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name, value in given.items():
        advice = _WHOLE_ROWS if isinstance(value, caches) else REFUSED.get(name)
        if advice and value is not None and value is not False:
            raise ValueError(f"{name} must be None in a model with {embedding.kind}: {advice}.")
    before = embedding.boundaries or {}
    embedding.called_again = bool(before) and (embedding.called_again or depth in before)
    noted = {name: given.get(name) for name in BOUNDARIES if name in names}
    embedding.boundaries = {**before, depth: noted}


def _forget_boundaries(embedding: BoundedEmbedding, depth: int, *_: Any) -> None:
    """Clear what was noted, which holds for one call."""
    noted = embedding.boundaries or {}
    embedding.boundaries = {at: given for at, given in noted.items() if at < depth}


def _documents(given: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Return the number of the document of each token, from the arguments of a model."""
    if (documents := given.get("document_ids")) is not None:
        return documents  # type: ignore[no-any-return]
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is not None:
        starts = (positions == 0).flatten(0, -3).all(0) if positions.ndim > 2 else positions == 0
        documents = starts.cumsum(-1)
    if mask is not None:
        check_tensor("attention_mask", mask, advice=_ADVICE)
        pairs = mask.shape[-2:] == (shape[-1],) * 2 and mask.shape != shape
        number = _documents_of_pairs(mask) if pairs else (mask != 0).long()
        documents = number + 2 * (0 if documents is None else documents)
    return documents


def _documents_of_pairs(mask: Tensor) -> Tensor:
    """Count the tokens that don't attend to the token before, by a mask of pairs."""
    joined = attended(mask.float()).diagonal(-1, -2, -1)
    joined = joined.flatten(1, -2).any(1) if joined.ndim > 2 else joined
    return pad(~joined, (1, 0)).long().cumsum(-1)


def _disable_caches(model: nn.Module) -> None:
    for module in model.modules():
        for config in (getattr(module, name, None) for name in ("config", "generation_config")):
            if getattr(config, "use_cache", None) is not None:
                config.use_cache = False  # type: ignore[union-attr]
