"""Fetches that are seeded where they happen: in a worker process, or in this one.

A `DataLoader` asks its data set for what its batch sampler says. Here the sampler says more than
the indices of a batch: it gives a `Ticket`, which has what the randomness of the batch depends
on. What is drawn for a batch then depends neither on the number of workers nor on the batches
before it, and a run can begin at any batch.
"""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from composable.utils.reproducibility import seed_epoch, seed_fetch, seed_order

__all__ = ["Ticket", "epoch_at_work", "is_indexed", "ticketed"]

_epoch_at_work: ContextVar[int | None] = ContextVar("epoch_at_work", default=None)


class Ticket(NamedTuple):
    """What to fetch, and what its randomness depends on."""

    seed: int
    epoch: int
    step: int
    indices: Any = None


def epoch_at_work() -> int | None:
    """The epoch for which this process is fetching, where a ticket says so."""
    return _epoch_at_work.get()


def is_indexed(dataloader: object) -> bool:
    """Whether a loader's batches are fetched by indices that this module can read."""
    # A subclass that goes through its batches in a way of its own might not ask the sampler.
    own = [getattr(type(dataloader), name, None) for name in _GOING_THROUGH]
    return (
        isinstance(dataloader, DataLoader)
        and not isinstance(dataloader.dataset, IterableDataset)
        and own == [getattr(DataLoader, name) for name in _GOING_THROUGH]
    )


_GOING_THROUGH = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")


def ticketed(dataloader: DataLoader[Any], first: Ticket, skip: int) -> DataLoader[Any]:
    """A loader of the same batches that fetches by tickets; the given one stays as it is.

    Args:
        dataloader: One that `is_indexed`.
        first: The seed, the epoch and the first step of the epoch.
        skip: How many batches of the epoch are not fetched.
    """
    loader = _kept.get(dataloader)
    if loader is None:
        loader = _copy(dataloader)
        if dataloader.persistent_workers:
            _kept[dataloader] = loader
    sampler: Any = loader._index_sampler
    sampler.first, sampler.skip = first, skip
    return loader


# Workers that persist do so in the copy: there has to be one copy as long as there is the loader.
_kept: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()


def _copy(dataloader: DataLoader[Any]) -> DataLoader[Any]:
    sampler = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    loader = object.__new__(type(dataloader))
    vars(loader).update(  # not by assignment, which a DataLoader refuses
        vars(dataloader),
        dataset=TicketedDataset(dataloader.dataset),
        worker_init_fn=WorkerStart(dataloader.worker_init_fn),
        _iterator=None,
        **{
            sampler: TicketSampler(
                getattr(dataloader, sampler), after_a_draw=dataloader.generator is None
            )
        },
    )
    return loader


class TicketSampler:
    """The batches of a sampler as tickets.

    The order is that of a `DataLoader` in this process that is gone through right after
    `seed_epoch`: one draws a seed for its workers between asking the sampler for an iterator and
    asking that for a batch. With workers it does so in another order, and with workers that
    persist not at all.
    """

    def __init__(self, sampler: Any, *, after_a_draw: bool) -> None:
        self.sampler = sampler
        self.after_a_draw = after_a_draw
        self.first = Ticket(0, 0, 0)
        self.skip = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Ticket]:
        seed_epoch(self.first.seed, self.first.epoch)
        if hasattr(self.sampler, "batches_from"):
            return self._number(self.sampler.batches_from(self.skip), self.skip)
        return self._number(iter(self.sampler), 0)

    def _number(self, batches: Iterator[Any], start: int) -> Iterator[Ticket]:
        seed, epoch, step, _ = self.first
        seed_epoch(seed, epoch)
        if self.after_a_draw:
            torch.empty((), dtype=torch.int64).random_()
        for i, indices in enumerate(batches, start):
            if i >= self.skip:
                yield Ticket(seed, epoch, step + i, indices)
            seed_order(seed, step + i + 1)  # for a sampler that draws as it goes


class TicketedDataset(Dataset[Any]):
    """A data set that seeds the global generators before it fetches."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, ticket: Ticket) -> Any:
        """The examples of a batch."""
        return _fetch(getattr(self.dataset, "__getitems__", None) or self._each, ticket)

    def __getitem__(self, ticket: Ticket) -> Any:
        """What the data set has at an index: a batch, where the loader makes none."""
        return _fetch(lambda index: self.dataset[index], ticket)

    def _each(self, indices: Iterable[Any]) -> list[Any]:
        return [self.dataset[index] for index in indices]


def _fetch(fetch: Callable[[Any], Any], ticket: Ticket) -> Any:
    seed_fetch(ticket.seed, ticket.step)
    before = _epoch_at_work.set(ticket.epoch)
    try:
        return fetch(ticket.indices)
    finally:
        _epoch_at_work.reset(before)


class WorkerStart:
    """A `worker_init_fn` that shows a worker the user's data set, and calls the user's."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Called by a worker when it starts."""
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # a WorkerInfo is frozen
        if self.then is not None:
            self.then(worker_id)
