"""Prefix tokens: predict the longest proper prefix of each target token, too.

Record 337 of modded-nanogpt, 2026, https://github.com/KellerJordan/modded-nanogpt/pull/337
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss

from composable._support.checks import (
    check_integer,
    check_one_of,
    check_range,
    check_tensor,
    checked,
    is_integer,
    kind_of,
)
from composable._support.targets import IGNORE_INDEX

from .linear_cross_entropy import REDUCTIONS

__all__ = ["prefix_targets", "prefix_token_loss", "prefix_tokens"]


def check_prefixes(name: str, value: Tensor) -> None:
    """Raise an error unless a value is a vector of indices."""
    _check_indices(name, value)
    if value.ndim != 1:
        raise ValueError(
            f"{name} must have one dimension, not shape {tuple(value.shape)}; "
            "prefix_tokens(vocabulary) returns it."
        )


def _check_indices(name: str, value: Tensor) -> None:
    check_tensor(name, value)
    if not is_integer(value):
        raise TypeError(f"{name} must be indices of an integer dtype, not {value.dtype}.")


def prefix_tokens(vocabulary: Sequence[bytes | str | None]) -> Int[Tensor, " tokens"]:
    """Find the token that is the longest proper prefix of each token.

    Args:
        vocabulary: The bytes of each token, in the order of their indices; None for a special token
            without bytes. Strings serve if each character stands for a byte, as in the vocabularies
            of byte-level BPE.

    Returns:
        For each token the index of its prefix; its own index if no other token is a prefix. Of
        several tokens with the same bytes the first counts.

    Raises:
        TypeError: `vocabulary` is not a sequence of bytes, or of strings.

    Example:
        >>> prefix_tokens([b"t", b"th", b"the", b"there", None, b"z"])
        tensor([0, 0, 1, 2, 4, 5])
    """
    kinds = {type(one) for one in vocabulary} if isinstance(vocabulary, Sequence) else {object}
    if isinstance(vocabulary, (str, bytes)) or not any(
        kinds <= {kind, type(None)} for kind in (bytes, str)
    ):
        raise TypeError(
            f"vocabulary must be a list of the bytes of each token, not {kind_of(vocabulary)} of "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}."
        )
    index: dict[bytes | str, int] = {}
    for i, token in enumerate(vocabulary):
        if token:
            index.setdefault(token, i)
    return torch.tensor([_prefix_of(token, i, index) for i, token in enumerate(vocabulary)])


def _prefix_of(token: bytes | str | None, own: int, index: dict[bytes | str, int]) -> int:
    prefixes = (token[:end] for end in range(len(token) - 1, 0, -1)) if token else ()
    return next((index[prefix] for prefix in prefixes if prefix in index), own)


@checked(prefixes=check_prefixes, ignore_index=check_integer)
def prefix_targets(
    targets: Int[Tensor, " *shape"],
    prefixes: Int[Tensor, " tokens"],
    *,
    ignore_index: int = IGNORE_INDEX,
) -> Int[Tensor, " *shape"]:
    """Replace target tokens by their longest proper prefixes.

    Args:
        targets: Indices of tokens.
        prefixes: The result of `prefix_tokens`, on the device of `targets`.
        ignore_index: Index of positions without a label, which stay so.

    Returns:
        Indices of tokens, of the shape and dtype of `targets`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `prefixes` has more or less than one dimension.
        RuntimeError: A target is neither a token nor `ignore_index`. PyTorch raises it, on a GPU at
            the next synchronization.

    Example:
        >>> prefix_targets(torch.tensor([2, -100, 0]), torch.tensor([0, 0, 1]))
        tensor([   1, -100,    0])
    """
    _check_indices("targets", targets)
    none = targets == ignore_index
    indices = torch.where(none, 0, targets).long()
    found = prefixes.gather(0, indices.flatten()).reshape(targets.shape)
    return torch.where(none, targets, found.to(targets.dtype))


def prefix_token_loss(
    logits: Float[Tensor, "batch classes *positions"],
    targets: Int[Tensor, " batch *positions"],
    prefixes: Int[Tensor, " classes"],
    *,
    weight: float = 0.25,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""Compute the cross-entropy of target tokens, and of their longest proper prefixes.

    $$\mathrm{CE}(x, y) + w \, \mathrm{CE}(x, p(y))$$

    Both are of the same logits. $p(y)$ is the prefix of $y$, or $y$ itself if no token is one, so
    that both are means over the same positions.

    Args:
        logits: Logits `[batch, classes, ...]`, as for `cross_entropy`.
        targets: Indices of tokens `[batch, ...]`.
        prefixes: The result of `prefix_tokens`, on the device of `targets`.
        weight: The weight $w$, at least 0.
        ignore_index: Index of positions without a label.
        reduction: "mean" over the positions with a label, "sum", or "none".

    Returns:
        The loss. The mean over no labels is NaN.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number or `reduction` is out of range, or the shapes don't match.
        RuntimeError: A target is neither a token nor `ignore_index`. PyTorch raises it, on a GPU at
            the next synchronization.

    Example:
        >>> logits, prefixes = torch.zeros(2, 3), torch.tensor([0, 0, 1])
        >>> loss = prefix_token_loss(logits, torch.tensor([2, 0]), prefixes)
        >>> bool(loss.isclose(1.25 * torch.tensor(3.0).log()))
        True
    """
    check_tensor("logits", logits)
    if not logits.is_floating_point() or logits.ndim < 2:
        raise ValueError(
            f"logits must be floating-point and have two dimensions or more, not {logits.dtype} "
            f"and shape {tuple(logits.shape)}."
        )
    check_range("weight", weight, 0, ends="[)")
    check_one_of("reduction", reduction, REDUCTIONS)
    check_prefixes("prefixes", prefixes)
    if len(prefixes) != logits.shape[1]:
        raise ValueError(
            f"prefixes of shape {tuple(prefixes.shape)} must have an entry for each of the "
            f"{logits.shape[1]} classes of logits; pad the vocabulary with None."
        )
    check_tensor("targets", targets)
    if targets.shape != (expected := (len(logits), *logits.shape[2:])):
        raise ValueError(
            f"targets must have the shape {expected} for logits of shape {tuple(logits.shape)}, "
            f"not {tuple(targets.shape)}."
        )
    shorter = prefix_targets(targets, prefixes, ignore_index=ignore_index)
    each = partial(nll_loss, log_softmax(logits, 1), ignore_index=ignore_index, reduction="none")
    losses: Tensor = each(targets) + (weight * each(shorter) if weight else 0)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (targets != ignore_index).sum()
