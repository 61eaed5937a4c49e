"""Sequence length warm-up: start training on short sequences.

Li, Zhang and He, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for
Training GPT Models", NeurIPS 2022, https://arxiv.org/abs/2108.06084
"""

from collections.abc import Callable
from math import floor
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import (
    check_count,
    check_flag,
    check_order,
    check_range,
    check_tensor,
    kind_of,
)
from composable._support.tree import map_tensors, named_tensors

__all__ = ["sequence_length", "set_sequence_length", "warmed_up_length"]

_IGNORED = -100  # the index that the losses of PyTorch and the models of Hugging Face ignore


def set_sequence_length(
    batch: Any,
    length: int,
    *,
    truncate: bool = True,
    preserve_end_of_sequence: bool = False,
) -> Any:
    """Shorten the sequences of a batch: truncate them, or split them into segments.

    A sequence is a tensor `[batch, tokens, ...]` with the number of tokens of `input_ids`, or else
    of the first tensor with two dimensions or more. All other tensors belong to the examples.

    Args:
        batch: A dict of tensors (or a BatchEncoding of Hugging Face), or tuples, lists and
            dataclasses of dicts or tensors, nested in any way.
        length: New number of tokens, at least 1. Shorter sequences are not changed.
        truncate: Keep the first tokens of each sequence. Otherwise split each sequence into
            segments, `[batch * segments, length, ...]`, in the order of the examples, so that no
            token is lost. If `length` does not divide the number of tokens, the last segment
            overlaps the one before, and the `labels` of the overlap are -100, so that each token
            is learned once. Tensors of an example are repeated for its segments.
        preserve_end_of_sequence: If truncating, replace the last kept token of each sequence by its
            last real one, such as the end-of-sequence token: the last token whose `attention_mask`
            is not 0. Segments always include that token.

    Returns:
        The batch with shorter sequences, of the same types, dtypes and devices; `batch` itself if
        its sequences are short enough. Shortened tensors are contiguous.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `length` is below 1, the batch has no sequence, segments overlap and the dtype
            of `labels` is unsigned, or `preserve_end_of_sequence` is True and there is no
            `attention_mask` of the shape of the sequences.

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
    tensors = list(named_tensors(batch))
    examples, tokens = _shape(batch, tensors)
    if length >= tokens:
        return batch

    def is_sequence(tensor: Tensor) -> bool:
        return tensor.shape[:2] == (examples, tokens)

    if not truncate:
        return map_tensors(_split(tensors, examples, tokens, length), batch)
    if not preserve_end_of_sequence:
        # Contiguous, since models call view() on labels and masks.
        return map_tensors(lambda t: t[:, :length].contiguous() if is_sequence(t) else t, batch)
    masks = [t for name, t in tensors if name == "attention_mask" and is_sequence(t)]
    if not masks:
        raise ValueError(
            "preserve_end_of_sequence=True must come with an attention_mask of shape "
            f"({examples}, {tokens}); add one to the batch, or pass False."
        )
    at = torch.arange(tokens, device=masks[0].device)
    end = (at * (masks[0] != 0)).amax(1, keepdim=True).clamp(min=length - 1)
    rows = torch.arange(examples, device=end.device).unsqueeze(1)

    def keep_end(tensor: Tensor) -> Tensor:
        if not is_sequence(tensor):
            return tensor
        return torch.cat([tensor[:, : length - 1], tensor[rows, end]], 1)

    return map_tensors(keep_end, batch)


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
    return _shape(batch, list(named_tensors(batch)))[1]


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
    check_range("elapsed", elapsed, 0)
    check_range("duration", duration, 0, 1)
    check_count("min_seq_length", min_seq_length, 1)
    check_count("max_seq_length", max_seq_length, 1)
    check_order("min_seq_length", min_seq_length, "max_seq_length", max_seq_length)
    check_count("step_size", step_size, 1)
    if elapsed >= duration:
        return max_seq_length
    # 1e-9: a rounding error of elapsed must not delay a step.
    steps = elapsed / duration * (max_seq_length - min_seq_length) / step_size + 1e-9
    return min_seq_length + step_size * floor(steps)


def _split(
    tensors: list[tuple[Any, Tensor]], examples: int, tokens: int, length: int
) -> Callable[[Tensor], Tensor]:
    count = -(-tokens // length)
    overlap = count * length - tokens
    names = (name for name, _ in tensors)  # tensors are visited in the same order

    def cut(tensor: Tensor) -> Tensor:
        name = next(names)
        if tensor.shape[:2] != (examples, tokens):
            return tensor.repeat_interleave(count, 0) if tensor.shape[:1] == (examples,) else tensor
        if overlap:
            first, last = tensor[:, : (count - 1) * length], tensor[:, -length:]
            again = last[:, :overlap]
            if name == "labels" and not tensor.is_floating_point():
                _check_can_ignore(tensor)
                again = torch.full_like(again, _IGNORED)
            tensor = torch.cat([first, again, last[:, overlap:]], 1)
        return tensor.reshape(examples * count, length, *tensor.shape[2:])

    return cut


def _check_can_ignore(labels: Tensor) -> None:
    if labels.dtype is torch.bool or torch.iinfo(labels.dtype).min > _IGNORED:
        raise ValueError(
            f"labels of dtype {labels.dtype} have no {_IGNORED}, the label of tokens that are not "
            "learned again where segments overlap; pass labels.long()."
        )


def _shape(batch: Any, tensors: list[tuple[Any, Tensor]]) -> tuple[int, int]:
    """Return the number of sequences and of their tokens."""
    if not tensors:
        raise ValueError(
            "batch must have sequences, tensors of shape [batch, tokens, ...], but "
            f"{kind_of(batch)} without tensors has none."
        )
    for name, tensor in tensors:
        check_tensor(f"batch: {name}", tensor)
    candidates = [(name, tensor.shape) for name, tensor in tensors if tensor.ndim > 1]
    if not candidates:
        raise ValueError(
            "batch must have sequences, tensors of shape [batch, tokens, ...], but it has "
            f"{', '.join(f'{name}: {tuple(t.shape)}' for name, t in tensors)}."
        )
    ids = [shape for name, shape in candidates if name == "input_ids"]
    examples, tokens, *_ = ids[0] if ids else candidates[0][1]
    return examples, tokens
