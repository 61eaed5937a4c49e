"""Batches in an order that depends on the seed and the epoch alone."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from composable.core.key import Key
from composable.utils.reproducibility import seed_epoch, seed_fetch

__all__ = ["seeded_batches"]

T = TypeVar("T")


def seeded_batches(
    dataloader: Iterable[T], seed: int | Key, *, epoch: int, first_step: int = 0
) -> Iterator[T]:
    """Go through a loader once, with the global generators seeded before each fetch.

    The loader's shuffling and its workers' seeds depend on `(seed, epoch)`, and what a dataset
    draws in this process on `(seed, step)`: on nothing that was drawn before. A distributed
    sampler is told the epoch. A loader that was given a generator of its own keeps using it.

    This is how the `Trainer` reads its loader; use it to get the same batches in your own loop.

    Args:
        dataloader: Any iterable of batches.
        seed: The seed of the run, or its `Key`.
        epoch: The epoch, from 0.
        first_step: The number of batches that the run has trained on before this epoch.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import seeded_batches
        >>> loader = DataLoader(range(6), batch_size=3, shuffle=True)
        >>> first = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        >>> first == [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        True
    """
    for owner in (dataloader, getattr(dataloader, "batch_sampler", None)):
        set_epoch = getattr(getattr(owner, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
            break
    seed_epoch(seed, epoch)
    if getattr(dataloader, "persistent_workers", False) and _is_running(dataloader):
        # A fresh iterator draws a seed for its workers before the order, one that goes on doesn't.
        torch.empty((), dtype=torch.int64).random_()
    if isinstance(dataloader, (list, tuple)):  # whose batches are there: nothing is drawn
        yield from dataloader
        return
    for step, batch in enumerate(dataloader, start=first_step + 1):
        yield batch
        seed_fetch(seed, step)


def _is_running(dataloader: object) -> bool:
    own = getattr(dataloader, "generator", None)
    return own is None and getattr(dataloader, "_iterator", None) is not None
