"""Rows of documents that are packed again in each epoch, in a new order."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from composable._support.checks import check_count, check_flag, check_integer, check_one_of
from composable._support.documents import check_document_list
from composable._support.targets import IGNORE_INDEX
from composable.core.key import Key, as_key
from composable.data.fetching import SharedEpoch
from composable.functional import pack_lengths


class PackedDocuments(Dataset[dict[str, Tensor]]):
    """A map-style dataset of rows, whose documents are in a new order in each epoch.

    The documents are permuted, packed into rows, and each row is an example: so a document has
    other neighbours, and is cut at other places, in each epoch. A row depends on the seed, the
    epoch and its index alone, and their number is the same in each epoch. Each epoch has every
    token once. Shuffle the rows too, by the sampler of the loader.

    A row may have no label, such as a last row of one token. The mean of a loss over it alone is
    nan, so use batches of several rows.

    `seeded_batches`, and so the `Trainer`, sets the epoch. In other loops call `set_epoch`, which
    reaches persistent workers too.

    Args:
        documents: Token ids of each document, one-dimensional tensors of one integer dtype on the
            CPU. They are copied into one tensor. An empty document has no place in a row.
        length: Number of tokens of a row, at least 1.
        seed: The seed of the order, or its `Key`.
        packing: "concatenate" joins all documents and cuts at the ends of rows, so that only the
            last row has padding. "first_fit" cuts only documents that are longer than a row, and
            plans the rest by `functional.pack_lengths`.
        shuffle: Draw a new order for each epoch; otherwise use the order of `documents`.
        pad_id: Token id of the padding at the end of a row.
        shift_labels: Let the label of a token be the next token of its document, for a loss that
            compares outputs and labels at the same place. Otherwise it is the token itself, for
            models that shift labels, such as Hugging Face's.
        ignore_index: Label of tokens that are not learned: padding, and the last token of each
            document with `shift_labels`, otherwise the first of each document and of a part that
            begins after a cut.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, no document has a token, or one is of more than one
            dimension, or of another dtype than the first.

    Example:
        >>> from composable.data import PackedDocuments
        >>> documents = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
        >>> rows = PackedDocuments(documents, 4, seed=17, shuffle=False)
        >>> rows[0]["input_ids"], rows[0]["document_ids"], rows[0]["position_ids"]
        (tensor([1, 2, 3, 4]), tensor([1, 1, 1, 2]), tensor([0, 1, 2, 0]))
        >>> rows[1]["input_ids"], rows[1]["labels"]
        (tensor([5, 0, 0, 0]), tensor([-100, -100, -100, -100]))
    """

    def __init__(
        self,
        documents: Sequence[Tensor],
        length: int,
        *,
        seed: int | Key,
        packing: str = "concatenate",
        shuffle: bool = True,
        pad_id: int = 0,
        shift_labels: bool = False,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        check_document_list(documents)
        check_count("length", length, 1)
        check_one_of("packing", packing, ("concatenate", "first_fit"))
        check_flag("shuffle", shuffle)
        check_integer("pad_id", pad_id)
        check_flag("shift_labels", shift_labels)
        check_integer("ignore_index", ignore_index)
        self.length, self.shuffle = length, shuffle
        self.pad_id, self.shift_labels, self.ignore_index = pad_id, shift_labels, ignore_index
        self._key = as_key(seed).fold("documents")
        self._epoch = SharedEpoch()
        # One tensor: workers share it, and a list of tensors would be copied as it is counted.
        self._tokens = torch.cat(list(documents))
        self._sizes = torch.tensor([len(document) for document in documents])
        if not len(self._tokens):
            raise ValueError("documents must have at least one token, and all are empty.")
        if self._tokens.device.type != "cpu":
            raise ValueError(
                f"documents must be on the CPU, not {self._tokens.device}: the loader reads them."
            )
        self._document_ends = self._sizes.cumsum(0)
        self._plan: Tensor | None = None
        if packing == "first_fit":
            self._sizes, self._plan, self._row_ends = _planned(self._sizes.tolist(), length)
        else:
            rows = -(-len(self._tokens) // length)
            self._row_ends = (torch.arange(1, rows + 1) * length).clamp(max=len(self._tokens))
        self._firsts = self._sizes.cumsum(0) - self._sizes
        self._drawn: tuple[int, _Layout] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._epoch.set(epoch)

    def __len__(self) -> int:
        return len(self._row_ends)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        index = range(len(self))[index]  # -1 is the last row
        begin = int(self._row_ends[index - 1]) if index else 0
        places = torch.arange(begin, int(self._row_ends[index]))
        parts, starts, ends = self._layout()
        part = torch.searchsorted(ends, places, right=True)
        tokens = self._firsts[parts[part]] + places - starts[part]
        positions = places - starts[part].clamp(min=begin)
        numbers = 1 + part.diff(prepend=part[:1]).ne(0).cumsum(0)
        return {
            "input_ids": self._padded(self._tokens[tokens].long(), self.pad_id),
            "labels": self._padded(self._labels(tokens, positions), self.ignore_index),
            "position_ids": self._padded(positions, 0),
            "document_ids": self._padded(numbers, 0),
        }

    def _labels(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if not self.shift_labels:
            return self._tokens[tokens].long().masked_fill(positions == 0, self.ignore_index)
        following = tokens + 1
        ends = self._document_ends[torch.searchsorted(self._document_ends, following)]
        labels = self._tokens[following.clamp(max=len(self._tokens) - 1)].long()
        return labels.masked_fill(ends == following, self.ignore_index)

    def _padded(self, values: Tensor, fill: int) -> Tensor:
        return pad(values, (0, self.length - len(values)), value=fill)

    def _layout(self) -> "_Layout":
        """Return the order of the epoch, which is kept until another epoch is read."""
        epoch = self._epoch.current()
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(epoch)
        return self._drawn[1]

    def _draw(self, epoch: int) -> "_Layout":
        count = len(self._sizes)
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=self._key.fold(epoch).generator())
        if self._plan is not None:  # parts of equal size change places
            order = order[self._sizes[order].argsort(descending=True, stable=True)][self._plan]
        sizes = self._sizes[order]
        ends = sizes.cumsum(0)
        return _Layout(order, ends - sizes, ends)


class _Layout(NamedTuple):
    """The parts of documents in the order of the rows: which, and where each begins and ends."""

    parts: Tensor
    starts: Tensor
    ends: Tensor


def _planned(documents: list[int], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut documents that are longer than a row, and plan the rows of the parts.

    The plan depends on the sizes alone, so it serves every order.

    Returns:
        The sizes of the parts; the parts of all rows, as ranks by falling size; and where each row
        ends, in tokens.
    """
    sizes = [min(length, size - cut) for size in documents for cut in range(0, size, length)]
    ranked = sorted(sizes, reverse=True)
    rows = pack_lengths(ranked, length)
    fills = [sum(ranked[rank] for rank in row) for row in rows]
    plan = [rank for row in rows for rank in row]
    return torch.tensor(sizes), torch.tensor(plan), torch.tensor(fills).cumsum(0)
