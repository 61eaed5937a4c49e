"""Sequence packing: several documents share a row, and don't see each other.

Krell, Kosec, Perez and Fitzgibbon, "Efficient Sequence Packing without Cross-contamination", 2021,
https://arxiv.org/abs/2107.02027
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor
from torch.nn.functional import pad

from composable._support.checks import check_count, check_flag, check_integer, check_tensor
from composable._support.devices import send
from composable._support.documents import check_document_list, check_list
from composable._support.targets import IGNORE_INDEX


def pack_documents(
    documents: Sequence[Integer[Tensor, " _"]],
    length: int,
    *,
    pad_id: int = 0,
    shift_labels: bool = False,
    ignore_index: int = IGNORE_INDEX,
) -> dict[str, Int[Tensor, "rows length"]]:
    """Pack documents into rows of equal length, with what a model needs to keep them apart.

    `pack_lengths` chooses the rows. The loss of the rows equals the documents' loss, if attention
    follows `document_mask` (or `cumulative_lengths`) and positions follow `position_ids`.

    Args:
        documents: Token ids of each document, one-dimensional tensors of 1 to `length` tokens.
        length: Number of tokens of a row, at least 1.
        pad_id: Token id of the padding at the end of a row.
        shift_labels: Let the label of a token be the next token, for a loss that compares outputs
            and labels at the same place. Otherwise it is the token itself, for models that shift
            labels, such as Hugging Face's.
        ignore_index: Label of tokens that are not learned: padding, and the last token of each
            document with `shift_labels`, otherwise the first.

    Returns:
        Tensors `[rows, length]` by name: `input_ids`; `labels`; `position_ids`, which start at 0 in
        each document; and `document_ids`, which count the documents of a row from 1, and are 0 for
        padding. They are int64, on the device of the documents.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is no document, or one is empty, longer than `length`, of more than one
            dimension, or of another dtype or device than the first.

    Example:
        >>> packed = pack_documents([torch.tensor([5, 6]), torch.tensor([7, 8, 9])], 6)
        >>> packed["input_ids"]
        tensor([[7, 8, 9, 5, 6, 0]])
        >>> packed["labels"]
        tensor([[-100,    8,    9, -100,    6, -100]])
        >>> packed["position_ids"]
        tensor([[0, 1, 2, 0, 1, 0]])
        >>> packed["document_ids"]
        tensor([[1, 1, 1, 2, 2, 0]])
    """
    check_count("length", length, 1)
    check_integer("pad_id", pad_id)
    check_flag("shift_labels", shift_labels)
    check_integer("ignore_index", ignore_index)
    check_document_list(documents)
    rows = pack_lengths([len(document) for document in documents], length)

    order, starts, numbers = _places(rows, documents, length)
    # A narrow dtype, such as uint8, has no room for `ignore_index` and the positions.
    tokens = torch.cat([documents[index] for index in order]).long()
    table = [[len(documents[index]) for index in order], starts, numbers]
    lengths, starts_of, numbers_of = send(torch.tensor(table), tokens.device)

    def of_tokens(values: Tensor) -> Tensor:
        return values.repeat_interleave(lengths, output_size=len(tokens))

    ends = lengths.cumsum(0)
    index = torch.arange(len(tokens), device=tokens.device)
    positions = index - of_tokens(ends - lengths)
    places = positions + of_tokens(starts_of)
    learned = tokens.roll(-1) if shift_labels else tokens
    ignored = index + 1 == of_tokens(ends) if shift_labels else positions == 0

    def scattered(values: Tensor, fill: int) -> Tensor:
        row = tokens.new_full((len(rows) * length,), fill)
        return row.index_copy_(0, places, values).view(len(rows), length)

    ids = scattered(tokens, pad_id)
    labels = scattered(learned.masked_fill(ignored, ignore_index), ignore_index)
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": scattered(positions, 0),
        "document_ids": scattered(of_tokens(numbers_of), 0),
    }


def pack_lengths(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Choose the documents of each row: first-fit decreasing.

    The documents are taken from the longest to the shortest, equal ones in their order, and each
    goes into the first row that has room for it. The number of rows is at most 11/9 of the least
    possible one, and 1.

    Args:
        lengths: Number of tokens of each document, from 1 to `length`.
        length: Number of tokens of a row, at least 1.

    Returns:
        The indices of the documents of each row.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A length is out of range.

    Example:
        >>> pack_lengths([2, 5, 3, 1], 6)
        [[1, 3], [2, 0]]
    """
    check_count("length", length, 1)
    check_list("lengths", lengths, "integers")
    for index, one in enumerate(lengths):
        advice = "truncate or split longer documents first"
        check_count(f"lengths[{index}]", one, 1, advice=advice)
        if one > length:
            raise ValueError(f"lengths[{index}]={one} must be at most length={length}; {advice}.")
    rows: list[list[int]] = []
    room = _Room(len(lengths), length)
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = room.take(lengths[index])
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
    return rows


def document_mask(
    document_ids: Int[Tensor, "*batch length"], *, causal: bool = True
) -> Bool[Tensor, "*batch 1 length length"]:
    """Return the attention mask that keeps the documents of a row apart.

    Args:
        document_ids: The number of the document of each token, as `pack_documents` returns it.
        causal: Let a token attend to itself and earlier tokens of its document. Otherwise it
            attends to the whole document.

    Returns:
        Whether each token attends to each other one, with a dimension for the heads: the
        `attn_mask` of `scaled_dot_product_attention`. Padding attends to padding, so that no
        row of it is empty.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `document_ids` has no dimension.

    Example:
        >>> document_mask(torch.tensor([1, 1, 2]))
        tensor([[[ True, False, False],
                 [ True,  True, False],
                 [False, False,  True]]])
    """
    _check_ids(document_ids)
    check_flag("causal", causal)
    mask = document_ids.unsqueeze(-1) == document_ids.unsqueeze(-2)
    mask = mask.tril() if causal else mask
    return mask.unsqueeze(-3)


def cumulative_lengths(document_ids: Int[Tensor, "*batch length"]) -> Int[Tensor, " bounds"]:
    """Return where documents begin in the flattened rows: `cu_seqlens` of flash attention.

    Args:
        document_ids: The number of the document of each token, as `pack_documents` returns it.

    Returns:
        The index of the first token of each document, and the number of all tokens, as int32. The
        padding of a row counts as a document.

    Raises:
        TypeError: `document_ids` is not a tensor.
        ValueError: `document_ids` has no dimension, or no values.

    Example:
        >>> cumulative_lengths(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
        tensor([0, 2, 3, 4, 8], dtype=torch.int32)
    """
    _check_ids(document_ids)
    if document_ids.is_meta:
        raise ValueError("document_ids must have values, not be on the device meta.")
    first = torch.ones_like(document_ids, dtype=torch.bool)
    first[..., 1:] = document_ids[..., 1:] != document_ids[..., :-1]
    starts = first.flatten().nonzero().squeeze(-1)
    return pad(starts, (0, 1), value=document_ids.numel()).int()


def _places(
    rows: list[list[int]], documents: Sequence[Tensor], length: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the documents in the order of the rows, where each starts, and its number."""
    order, starts, numbers = [], [], []
    for row, members in enumerate(rows):
        start = row * length
        for number, index in enumerate(members, 1):
            order.append(index)
            starts.append(start)
            numbers.append(number)
            start += len(documents[index])
    return order, starts, numbers


class _Room:
    """The room of each row, in a tree of maxima that finds the first row with enough of it."""

    def __init__(self, rows: int, length: int) -> None:
        self.leaves = 1 << max(rows - 1, 0).bit_length()
        self.most = [length] * (2 * self.leaves)

    def take(self, size: int) -> int:
        """Take the room of a document from the first row that has it, and return the row."""
        node = 1
        while node < self.leaves:
            node = 2 * node if self.most[2 * node] >= size else 2 * node + 1
        row = node - self.leaves
        self.most[node] -= size
        while node > 1:
            node //= 2
            self.most[node] = max(self.most[2 * node], self.most[2 * node + 1])
        return row


def _check_ids(document_ids: Any) -> None:
    check_tensor("document_ids", document_ids)
    if not document_ids.ndim:
        raise ValueError("document_ids must have the shape [..., length], not ().")
