"""Small data sets, and loaders of them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from tests.support.models import CLASSES, FEATURES, LENGTH, SIDE, WORDS

IGNORED = -100
"""The label of the padding of a sentence."""


def examples(
    count: int = 10,
    *,
    images: bool = False,
    features: int = FEATURES,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return inputs and class indices, the same at every call."""
    generator = torch.Generator().manual_seed(count)
    shape = (2, SIDE, SIDE) if images else (features,)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


def batches(
    count: int | Sequence[int] = 10, size: int = 4, **options: Any
) -> list[tuple[Tensor, Tensor]]:
    """Return a loader without shuffling: a list of batches.

    Args:
        count: Number of examples, or the sizes of the batches.
        size: Size of the batches; the last may be smaller.
        options: Options of `examples`.
    """
    if isinstance(count, int):
        count = [min(size, count - start) for start in range(0, count, size)]
    inputs, targets = examples(sum(count), **options)
    return list(zip(inputs.split(count), targets.split(count), strict=True))


def sentences(count: int = 10) -> list[dict[str, Tensor]]:
    """Return token ids and their labels, of which those of the padding are ignored."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(WORDS, (count, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (count, 1), generator=generator)
    padding = torch.arange(LENGTH) >= lengths
    ids, labels = ids.masked_fill(padding, 0), labels.masked_fill(padding, IGNORED)
    return [{"input_ids": i, "labels": j} for i, j in zip(ids, labels, strict=True)]


def text_batches(count: int = 10, size: int = 4) -> list[dict[str, Tensor]]:
    """Return batches of sentences, of which the last may be short."""
    rows = sentences(count)  # a DataLoader would draw from the global generator
    return [default_collate(rows[i : i + size]) for i in range(0, count, size)]


def shuffled_text(count: int = 10, size: int = 4) -> DataLoader[Any]:
    """Build a DataLoader of sentences that shuffles."""
    return DataLoader(sentences(count), batch_size=size, shuffle=True)  # type: ignore[arg-type]


def count_tokens(batch: Mapping[str, Tensor]) -> int:
    """Count the tokens of a batch of sentences, without the padding."""
    return int((batch["labels"] != IGNORED).sum())


class Stream:
    """A loader that doesn't know its length."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def stream(count: int = 10, size: int = 4, **options: Any) -> Stream:
    """Return the batches of `batches` as a stream of unknown length."""
    return Stream(batches(count, size, **options))


class Stateful(IterableDataset[Any]):
    """A stream of examples with a state: the number of those that were read in the epoch."""

    at = begin = 0

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        self.at, self.begin = self.begin, 0
        while self.at < len(self.inner):
            self.at += 1
            yield self.inner[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.begin = state["at"]


def shuffling_loader(
    count: int = 10, size: int = 4, generator: torch.Generator | None = None, **options: Any
) -> DataLoader[Any]:
    """Build a DataLoader that shuffles; its last batch may be short."""
    data = TensorDataset(*examples(count, **options))
    return DataLoader(data, batch_size=size, shuffle=True, generator=generator)


class NoisyExamples(Dataset[Any]):
    """Examples with noise from the global generators of torch, Python and NumPy."""

    def __init__(self, count: int = 10, **options: Any) -> None:
        self.inputs, self.targets = examples(count, **options)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        numpy_noise = float(np.random.normal())  # noqa: NPY002
        noise = 0.1 * (torch.randn(()) + random.gauss(0, 1) + numpy_noise)
        return self.inputs[i] + noise, self.targets[i]


def noisy_loader(count: int = 10, size: int = 4, **options: Any) -> DataLoader[Any]:
    """Build a DataLoader that shuffles, and whose dataset draws random numbers."""
    return DataLoader(NoisyExamples(count, **options), batch_size=size, shuffle=True)
