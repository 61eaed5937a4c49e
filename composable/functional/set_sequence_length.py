"""Sequence length warm-up: begin training on short sequences.

Li, Zhang and He, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for
Training GPT Models", NeurIPS 2022, https://arxiv.org/abs/2108.06084
"""

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import floor
from typing import Any

import torch
from torch import Tensor

from ._checks import check_count, check_flag, check_range

__all__ = ["sequence_length", "set_sequence_length", "warmed_up_length"]

_IGNORED = -100  # the class index that torch's losses and Hugging Face's models leave out


def set_sequence_length(
    batch: Any,
    length: int,
    *,
    truncate: bool = True,
    preserve_end_of_sequence: bool = False,
) -> Any:
    """Make the sequences of a batch shorter: cut them off, or cut them into pieces.

    A sequence is a tensor `[batch, tokens, ...]`, with as many tokens as `input_ids`, or where
    the batch has no such entry as its first tensor of two or more dimensions. All other tensors
    belong to an example as a whole.

    Args:
        batch: A dict of tensors (Hugging Face's BatchEncoding is one too), or a tuple or list
            of such or of tensors, nested in any way.
        length: The number of tokens to come to, at least 1. Sequences that are no longer stay.
        truncate: Keep the first tokens of each sequence. Otherwise each is cut into pieces
            `[batch * pieces, length, ...]`, those of an example one after another, and no token
            is lost: where `length` does not divide the number of tokens, the last piece begins
            within the one before, and what both have has -100 in its `labels`, so that each
            token is learned once. What belongs to an example goes to all of its pieces.
        preserve_end_of_sequence: When truncating, let the last token that is kept of each
            sequence be its last real one, such as the end-of-sequence token. That is the last
            where `attention_mask` is not 0. In pieces the last token is kept anyway.

    Returns:
        The batch with shorter sequences, of the same types, dtypes and devices: views where
        truncation is all; the batch itself where its sequences are short enough.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `length` is below 1, the batch has no sequence, or the end is to be kept and
            there is no `attention_mask` of the sequences.

    Example:
        >>> batch = {"input_ids": torch.arange(10).reshape(2, 5), "label": torch.tensor([0, 1])}
        >>> set_sequence_length(batch, 2)
        {'input_ids': tensor([[0, 1],
                [5, 6]]), 'label': tensor([0, 1])}
        >>> set_sequence_length(batch, 3, truncate=False)["input_ids"].tolist()
        [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]
    """
    check_count("length", length, 1)
    check_flag("truncate", truncate)
    check_flag("preserve_end_of_sequence", preserve_end_of_sequence)
    tensors = list(_named_tensors(batch))
    examples, tokens = _shape(batch, tensors)
    if length >= tokens:
        return batch

    def is_sequence(tensor: Tensor) -> bool:
        return tensor.shape[:2] == (examples, tokens)

    if not truncate:
        return _map(batch, _pieces(examples, tokens, length))
    if not preserve_end_of_sequence:
        return _map(batch, lambda _, t: t[:, :length] if is_sequence(t) else t)
    masks = [t for name, t in tensors if name == "attention_mask" and is_sequence(t)]
    if not masks:
        raise ValueError(
            "preserve_end_of_sequence=True needs an attention_mask of the sequences, "
            f"({examples}, {tokens}), to find their ends. Add one to the batch, or leave it False."
        )
    at = torch.arange(tokens, device=masks[0].device)
    end = (at * (masks[0] != 0)).amax(1, keepdim=True).clamp(min=length - 1)
    rows = torch.arange(examples, device=end.device).unsqueeze(1)

    def keep_end(_: Any, tensor: Tensor) -> Tensor:
        if not is_sequence(tensor):
            return tensor
        return torch.cat([tensor[:, : length - 1], tensor[rows, end]], 1)

    return _map(batch, keep_end)


def sequence_length(batch: Any) -> int:
    """Say how many tokens the sequences of a batch have: what `set_sequence_length` changes.

    Args:
        batch: A dict of tensors, or a tuple or list of such or of tensors, nested in any way.

    Raises:
        ValueError: The batch has no sequence.

    Example:
        >>> sequence_length({"label": torch.tensor([0, 1]), "input_ids": torch.zeros(2, 5)})
        5
    """
    return _shape(batch, list(_named_tensors(batch)))[1]


def warmed_up_length(
    elapsed: float,
    *,
    duration: float = 0.3,
    min_seq_length: int = 8,
    max_seq_length: int = 1024,
    step_size: int = 8,
) -> int:
    """Say how long sequences are at a time of training: it grows in steps, along a line.

    Args:
        elapsed: Share of the training that has passed, 0 or more.
        duration: Share of the training in which it grows, in [0, 1]. 0 for no warm-up.
        min_seq_length: The length at the start, at least 1.
        max_seq_length: The length at the end of the warm-up and after it.
        step_size: It grows by this many tokens at a time; the last step may be a smaller one.

    Returns:
        The number of tokens, in `[min_seq_length, max_seq_length]`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: One of them is out of its range.

    Example:
        >>> [warmed_up_length(t / 10, max_seq_length=64) for t in range(5)]
        [8, 24, 40, 64, 64]
    """
    check_range("elapsed", elapsed, 0)
    check_range("duration", duration, 0, 1)
    check_count("min_seq_length", min_seq_length, 1)
    advice = "It is no smaller than min_seq_length."
    check_count("max_seq_length", max_seq_length, min_seq_length, advice=advice)
    check_count("step_size", step_size, 1)
    if elapsed >= duration:
        return max_seq_length
    # What rounding took from elapsed must not put off a step that is due.
    steps = elapsed / duration * (max_seq_length - min_seq_length) / step_size + 1e-9
    return min_seq_length + step_size * floor(steps)


def _pieces(examples: int, tokens: int, length: int) -> Callable[[Any, Tensor], Tensor]:
    count = -(-tokens // length)
    overlap = count * length - tokens

    def cut(name: Any, tensor: Tensor) -> Tensor:
        if tensor.shape[:2] != (examples, tokens):
            return tensor.repeat_interleave(count, 0) if tensor.shape[:1] == (examples,) else tensor
        if overlap:
            first, last = tensor[:, : (count - 1) * length], tensor[:, -length:]
            again = last[:, :overlap]
            if name == "labels" and not tensor.is_floating_point():
                again = torch.full_like(again, _IGNORED)
            tensor = torch.cat([first, again, last[:, overlap:]], 1)
        return tensor.reshape(examples * count, length, *tensor.shape[2:])

    return cut


def _shape(batch: Any, tensors: list[tuple[Any, Tensor]]) -> tuple[int, int]:
    """The number of sequences, and of their tokens."""
    if not tensors:
        raise ValueError(
            f"batch is a {type(batch).__name__} without a tensor, but must hold sequences: tensors "
            "of shape [batch, tokens, ...]."
        )
    candidates = [(name, tensor.shape) for name, tensor in tensors if tensor.ndim > 1]
    if not candidates:
        raise ValueError(
            "batch has no sequence, which is a tensor of shape [batch, tokens, ...]; it has "
            f"{', '.join(f'{name}: {tuple(t.shape)}' for name, t in tensors)}."
        )
    ids = [shape for name, shape in candidates if name == "input_ids"]
    examples, tokens, *_ = ids[0] if ids else candidates[0][1]
    return examples, tokens


def _named_tensors(tree: Any, name: Any = "batch") -> Iterator[tuple[Any, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    for key, child in _children(tree):
        yield from _named_tensors(child, key)


def _map(tree: Any, function: Callable[[Any, Tensor], Tensor], name: Any = "batch") -> Any:
    if isinstance(tree, Tensor):
        return function(name, tree)
    new = {key: _map(child, function, key) for key, child in _children(tree)}
    if isinstance(tree, (dict, UserDict)) and type(tree) is not dict:
        like = copy.copy(tree)
        like.update(new)
        return like
    if isinstance(tree, Mapping):
        return type(tree)(new)  # type: ignore[call-arg]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*new.values())
    return type(tree)(new.values()) if isinstance(tree, (tuple, list)) else tree


def _children(tree: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        return tree.items()
    if isinstance(tree, (tuple, list)):
        return zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    return ()
