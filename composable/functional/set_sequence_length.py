"""Sequence length warm-up: start training on short sequences.

Li, Zhang and He, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for
Training GPT Models", NeurIPS 2022, https://arxiv.org/abs/2108.06084
"""

from collections.abc import Collection
from math import floor
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from composable._support.checks import (
    check_flag,
    check_order,
    check_tensor,
    checked,
    kind_of,
    minimum,
    within,
)
from composable._support.targets import IGNORE_INDEX
from composable._support.tree import map_tensors, named_tensors, tensors_of

__all__ = ["sequence_length", "set_sequence_length", "warmed_up_length"]

_Named: TypeAlias = list[tuple[Any, Tensor]]
_LABELS = ("labels", "label", "label_ids", "targets", "target", "y")
_UNSURE = ("mask", "masks", "input_mask", "attn_mask", "pad_mask")
_POSITIONS = ("position_ids", "positions")
_BESIDE = (*_POSITIONS, "attention_mask")


@checked(length=minimum(1), truncate=check_flag, preserve_end_of_sequence=check_flag)
def set_sequence_length(
    batch: Any,
    length: int,
    *,
    truncate: bool = True,
    preserve_end_of_sequence: bool = False,
    labels: Any = None,
) -> Any:
    """Shorten the sequences of a batch: truncate them, or split them into segments.

    A sequence is a tensor `[batch, tokens, ...]` with the number of tokens of `input_ids`, or else
    of the first tensor with two dimensions or more. With it are cut the positions of tokens,
    `position_ids` `[..., batch, tokens]`, and masks of pairs of tokens `[batch, ..., tokens,
    tokens]`: the `attention_mask`, and tensors of bools. All other tensors belong to the examples.

    The text of a sequence is what the `attention_mask` keeps, of tokens or of pairs: it is cut in
    the same way with its padding on either side. Its values may be bools, 0 and 1, or 0 and minus
    infinity. A tensor `padding_mask` or `key_padding_mask` is True, 1 or minus infinity for
    padding.

    Args:
        batch: A dict of tensors (or a BatchEncoding of Hugging Face), or tuples, lists and
            dataclasses of dicts or tensors, nested in any way.
        length: New number of tokens, at least 1. Shorter sequences are not changed.
        truncate: Keep the first tokens of each text; or, if none of them but the first has a label
            (negative ones, as of a prompt, don't count), tokens around the first label. Otherwise
            split each text into segments, `[batch * segments, length, ...]`, in the order of the
            examples, so that no token is lost. Segments share tokens, and integer labels of a token
            that the segment before has are -100, so that each label is learned once. With such
            labels, segments share one token at least, since models that shift labels don't learn
            the first label of a row. Tensors of an example are repeated for its segments.
        preserve_end_of_sequence: If truncating, replace the last kept token of each sequence by the
            last one of its text, such as the end-of-sequence token. Segments always include it.
        labels: The labels in the batch, such as `batch["targets"]`. By default those with the name
            "labels", "targets" or the like, and those in the second item of a pair.

    Returns:
        The batch with shorter sequences, of the same types, dtypes and devices; `batch` itself if
        its sequences are short enough. Shortened tensors are contiguous.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `length` is below 1, the batch has no sequence, segments overlap and the labels
            are not known or of a dtype without -100, a mask of tokens has the name "mask" or the
            like, or `preserve_end_of_sequence` is True and there is no mask.

    Example:
        >>> batch = {"input_ids": torch.arange(10).reshape(2, 5), "label": torch.tensor([0, 1])}
        >>> set_sequence_length(batch, 2)
        {'input_ids': tensor([[0, 1],
                [5, 6]]), 'label': tensor([0, 1])}
        >>> set_sequence_length(batch, 3, truncate=False)["input_ids"].tolist()
        [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]
        >>> padded = {"input_ids": torch.tensor([[0, 0, 7, 8, 9]])}
        >>> padded["attention_mask"] = (padded["input_ids"] > 0).long()
        >>> set_sequence_length(padded, 2)["input_ids"]
        tensor([[7, 8]])
    """
    tensors = list(named_tensors(batch))
    if isinstance(labels, (str, int)):
        raise TypeError(f"labels={labels!r} must be tensors of the batch: batch[{labels!r}].")
    given = set(map(id, tensors_of(labels)))
    first = _first_sequence(batch, tensors, given)
    ids = tensors[first][1]
    if length >= ids.shape[1]:
        return batch
    found = _labels_in(batch, tensors, first, given)
    learned = [tensors[i][1] for i in found if tensors[i][1].shape[:2] == ids.shape[:2]]
    mask = _kept_tokens(tensors, ids)
    if truncate and preserve_end_of_sequence and mask is None:
        raise ValueError(
            "preserve_end_of_sequence=True must come with an attention_mask of shape "
            f"{tuple(ids.shape[:2])}; add one to the batch, or pass False."
        )
    at = torch.arange(ids.shape[1], device=ids.device)
    begin, end = at[:1, None], at[-1:, None] + 1
    if mask is not None:
        begin, end = mask.int().argmax(1, keepdim=True), (at * mask).amax(1, keepdim=True) + 1
    if truncate:
        begin = _before_labels(begin, at, learned, length)
    else:  # a model that shifts labels doesn't learn the first one of a row
        shared = int(length > 1 and any(map(_can_be_ignored, learned)))
        count = -(-(len(at) - shared) // (length - shared))
        begin = begin + at[:count] * (length - shared)
        if mask is not None or count * length > len(at):
            _check_labels(tensors, first, found)
    begin = torch.minimum(begin, (end - length).clamp(min=0))
    index = begin[..., None] + at[:length]  # [batch, segments, length]
    again = (index < pad(begin[:, :-1] + length, (1, 0))[..., None]).expand(len(ids), -1, -1)
    if truncate and preserve_end_of_sequence:
        index[..., -1] = torch.maximum(index[..., -1], end - 1)
    places = iter(range(len(tensors)))  # tensors are visited in the same order

    def cut(tensor: Tensor) -> Tensor:
        place = next(places)
        new = _cut(tensors[place][0], tensor, ids, index)
        if truncate or place not in found or tensor.shape[:2] != ids.shape[:2]:
            return new
        ignored = again.reshape(*new.shape[:2], *[1] * (tensor.ndim - 2))
        return new.masked_fill(ignored, IGNORE_INDEX) if _can_be_ignored(tensor) else new

    return map_tensors(cut, batch)


def sequence_length(batch: Any) -> int:
    """Return the number of tokens of the sequences of a batch; see `set_sequence_length`.

    Args:
        batch: A dict of tensors, or tuples, lists and dataclasses of these, nested in any way.

    Raises:
        ValueError: The batch has no sequence.

    Example:
        >>> sequence_length({"label": torch.tensor([0, 1]), "input_ids": torch.zeros(2, 5)})
        5
    """
    tensors = list(named_tensors(batch))
    return tensors[_first_sequence(batch, tensors)][1].shape[1]


@checked(
    elapsed=within(0),
    duration=within(0, 1),
    min_seq_length=minimum(1),
    max_seq_length=minimum(1),
    step_size=minimum(1),
)
def warmed_up_length(
    elapsed: float,
    *,
    duration: float = 0.3,
    min_seq_length: int = 8,
    max_seq_length: int = 1024,
    step_size: int = 8,
) -> int:
    """Return the sequence length at a time of training: it grows linearly, in steps.

    Args:
        elapsed: Elapsed fraction of training, 0 or more.
        duration: Share of training in which the length grows, in [0, 1]. 0 for no warm-up.
        min_seq_length: Length at the start, at least 1.
        max_seq_length: Length after the warm-up, at least `min_seq_length`.
        step_size: Number of tokens by which the length grows at a time, at least 1.

    Returns:
        The number of tokens, in `[min_seq_length, max_seq_length]`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    Example:
        >>> [warmed_up_length(t / 10, max_seq_length=64) for t in range(5)]
        [8, 24, 40, 64, 64]
    """
    check_order("min_seq_length", min_seq_length, "max_seq_length", max_seq_length)
    if elapsed >= duration:
        return max_seq_length
    # 1e-9: a rounding error of elapsed must not delay a step.
    steps = elapsed / duration * (max_seq_length - min_seq_length) / step_size + 1e-9
    return min_seq_length + step_size * floor(steps)


def _first_sequence(batch: Any, tensors: _Named, given: Collection[int] = ()) -> int:
    """Return the place of the tensor that has the number of sequences and of their tokens."""
    for name, tensor in tensors:
        check_tensor(f"batch: {name}", tensor)
    candidates = [i for i, (name, t) in enumerate(tensors) if t.ndim > 1 and name not in _BESIDE]
    if not candidates:
        shapes = ", ".join(f"{name}: {tuple(t.shape)}" for name, t in tensors)
        raise ValueError(
            "batch must have sequences, tensors of shape [batch, tokens, ...], but it "
            f"{f'has {shapes}' if tensors else f'is {kind_of(batch)} without tensors'}."
        )
    named = [i for i in candidates if tensors[i][0] == "input_ids"]
    return (named or [i for i in candidates if id(tensors[i][1]) not in given] or candidates)[0]


def _labels_in(batch: Any, tensors: _Named, first: int, given: set[int]) -> list[int]:
    """Return the places of the labels: those that are given, by name, or in a pair."""
    others = [i for i in range(len(tensors)) if i != first]
    if found := [i for i in others if id(tensors[i][1]) in given]:
        return found
    pair = type(batch) in (tuple, list) and len(batch) == 2
    inputs = len(list(tensors_of(batch[0]))) if pair else len(tensors)
    return [i for i in others if i >= inputs or tensors[i][0] in _LABELS]


def _check_labels(tensors: _Named, first: int, found: list[int]) -> None:
    """Raise a ValueError unless labels are known, and can be ignored where segments overlap."""
    for i, (name, tensor) in enumerate(tensors):
        unknown = not found and i != first and not str(name).endswith(("ids", "mask", "positions"))
        fits = tensor.shape[:2] == tensors[first][1].shape[:2]
        if fits and (unknown if _can_be_ignored(tensor) else i in found):
            raise ValueError(
                f"batch: {name!r} of {tensor.dtype} must be signed integers that have the name "
                f"labels or are passed as labels=, since segments share tokens, whose second label "
                f"is {IGNORE_INDEX}; or pass truncate=True."
            )


def _can_be_ignored(labels: Tensor) -> bool:
    return labels.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def _kept_tokens(tensors: _Named, ids: Tensor) -> Tensor | None:
    """Return which tokens are not padding, `[batch, tokens]`; None without a mask."""
    for name, tensor in tensors:
        padding = str(name).endswith("padding_mask")
        fits = tensor.ndim > 1 and (len(tensor), tensor.shape[-1]) == ids.shape[:2]
        if fits and (padding or name == "attention_mask"):
            values = tensor.float() if tensor.ndim == 2 else tensor.float().flatten(1, -2).amax(1)
            return attended(-values.abs() if padding else values)  # -inf is padding, like True
    if unsure := [n for n, one in tensors if n in _UNSURE and one.shape == ids.shape[:2]]:
        raise ValueError(
            f"batch: {unsure[0]!r} may be True for text or for padding: name it attention_mask or "
            "padding_mask."
        )
    return None


def attended(mask: Tensor) -> Tensor:
    """Return what a row of a mask keeps; all, if it is empty.

    Its values are 0 or False and 1 or True, or else 0 and minus infinity.
    """
    kept = mask > mask.amin(-1, keepdim=True).clamp(max=0)
    return kept | ~kept.any(-1, keepdim=True)


def _before_labels(begin: Tensor, at: Tensor, learned: list[Tensor], length: int) -> Tensor:
    """Return where to begin, so that one of the tokens after the first has a label."""
    labels = [one >= 0 for one in learned if one.ndim == 2 and not one.is_floating_point()]
    if not labels:
        return begin
    label = (torch.stack(labels).any(0) & (at > begin)).int().argmax(1, keepdim=True)
    return torch.where(label < begin + length, begin, label - length // 2)


def _cut(name: Any, tensor: Tensor, ids: Tensor, index: Tensor) -> Tensor:
    """Cut a tensor, if it has tokens; or repeat the rows of examples for their segments."""
    shape, (_, count, length) = ids.shape[:2], index.shape
    rows = torch.arange(shape[0], device=ids.device)[:, None, None]
    size, tail = shape[1], tensor.shape[-2:]
    if name in _POSITIONS and tail[-1:] == (size,) and tail[:-1] in ((), (1,), shape[:1]):
        every = tensor.expand(*tensor.shape[:-2], *shape)
        return every[..., rows, index].flatten(-3, -2).contiguous()
    pairs = name == "attention_mask" or tensor.dtype is torch.bool
    if pairs and tail == (size, size) and tensor.shape != shape:
        if tensor.ndim == 2 or len(tensor) != shape[0]:  # the same for all examples
            return tensor[..., :length, :length].contiguous()
        by_row = tensor.movedim((-2, -1), (1, 2))
        new = by_row[rows[..., None], index[..., None], index[..., None, :]].flatten(0, 1)
        return new.movedim((1, 2), (-2, -1)).contiguous()
    if tensor.shape[:2] == shape:
        return tensor[rows, index].flatten(0, 1)
    repeated = count > 1 and tensor.shape[:1] == shape[:1]
    return tensor.repeat_interleave(count, 0) if repeated else tensor
