"""Seeded fetching in the main process or in worker processes.

A `DataLoader` passes each item of its batch sampler to its dataset. Here each item is a
`SeededIndex`: the indices of a batch, together with the seed, epoch and step that determine its
random numbers. The random numbers of a batch then depend neither on the number of workers nor on
earlier batches, so an epoch can start at any batch.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    get_worker_info,
)
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from composable._support.warn import warn_user
from composable.core.key import Key
from composable.utils.reproducibility import seed_epoch, seed_fetch, seed_order

T = TypeVar("T")


class Fetch(NamedTuple):
    """The epoch of a fetch, and the process that fetches; worker processes inherit it."""

    epoch: int
    process: int


_current_fetch: ContextVar[Fetch | None] = ContextVar("current_fetch", default=None)

Parts: TypeAlias = Callable[[Any], Iterable[tuple[int, Any]]]
"""A function from the indices of a batch to its parts and their numbers."""


class Epoch(NamedTuple):
    """Which batches of an epoch are fetched, and what determines their random numbers."""

    key: Key
    """The key of the run."""
    number: int
    step: int
    """The first step of the epoch."""
    skip: int = 0
    """Number of batches at the start of the epoch that are not fetched."""
    parts: Parts | None = None
    """Splits the indices of a batch into numbered parts, each of which is fetched."""
    stop: int | None = None
    """The number of batches after which the epoch ends; None for the end of the loader."""


class SeededIndex(NamedTuple):
    """The indices of a batch, with the seed, epoch and step that determine its random numbers."""

    seed: int
    epoch: int
    step: int
    indices: Any
    shard: int = 0
    """The number of the shard in the batch, if each shard is fetched by itself."""


def current_fetch() -> Fetch | None:
    """Return the fetch in progress, or None outside a fetch."""
    return _current_fetch.get()


def enter_epoch(epoch: int) -> "Token[Fetch | None]":
    """Let fetches in this process be of an epoch, from now on."""
    return _current_fetch.set(Fetch(epoch, os.getpid()))


def in_epoch(batches: Iterator[T], epoch: int) -> Iterator[T]:
    """Yield batches, each of which is fetched in an epoch: see `current_fetch`."""
    fetch = Fetch(epoch, os.getpid())
    while True:
        before = _current_fetch.set(fetch)  # not while the batch is used
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            _current_fetch.reset(before)
        yield batch


_REPORT, _REPORT_WITHIN = 1, 2


class SharedEpoch:
    """The epoch of the fetch in progress, and outside `seeded_batches` the epoch that was set.

    An iterable that sets the epoch while it is iterated over, as one does that repeats a loader,
    keeps its epoch. It is in shared memory, so that persistent workers see a change.
    """

    def __init__(self) -> None:
        self._value = torch.zeros(2, dtype=torch.int64)  # the epoch, and who has set it
        self._value.share_memory_()  # type: ignore[no-untyped-call]

    def set(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._value[0] = epoch
        self._value[1].clamp_(min=_REPORT if current_fetch() is None else _REPORT_WITHIN)

    def current(self) -> int:
        """Return the epoch."""
        fetch, (epoch, reported) = current_fetch(), self._value.tolist()
        if fetch is None or reported == _REPORT_WITHIN:
            return int(epoch)
        # What a worker has inherited is of the epoch in which it was started.
        inherited = fetch.process != os.getpid()
        return int(epoch) if inherited and reported else fetch.epoch


def loader_length(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # of an abstract base class
        return None


def until(stop: int | None, batches: Iterator[T], begin: int) -> Iterator[T]:
    """Iterate over batches from number `begin` on, to `stop` at the most.

    Warns:
        UserWarning: They end before.
    """
    return batches if stop is None else _until(stop, batches, begin)


def _until(stop: int, batches: Iterator[T], end: int) -> Iterator[T]:
    begin = end
    for batch in islice(batches, stop - begin):
        yield batch
        end += 1
    if end < stop:
        warn_user(
            f"a loader has ended after {end} batches, before the limit of {stop} of epoch_batches "
            "or eval_batches; its epoch, or evaluation, is shorter than that.",
            UserWarning,
        )


def function_arity(loader: Any) -> int | None:
    """Return the number of arguments of a function that stands for a loader; None for a loader.

    Without arguments it returns an iterator over batches, and with two, the key of the run and the
    number of a batch, it returns that batch.
    """
    if isinstance(loader, (Iterable, type)) or not callable(loader):
        return None
    try:
        parameters = inspect.signature(loader).parameters.values()
    except ValueError:  # a builtin function may have none
        return None
    return sum(one.default is one.empty and one.kind <= one.VAR_POSITIONAL for one in parameters)


def is_map_style(dataloader: object) -> bool:
    """Return whether `dataloader` is a `DataLoader` that fetches by the indices of its sampler."""
    return (
        isinstance(dataloader, DataLoader)
        and not isinstance(dataloader.dataset, IterableDataset)
        and not has_own_iteration(dataloader)  # it might not use the sampler
    )


def uses_workers(dataloader: DataLoader[Any]) -> bool:
    """Return whether batches come from other processes or threads."""
    return bool(dataloader.num_workers or dataloader.pin_memory)


def check_map_style(dataset: Any) -> None:
    """Raise a `TypeError` unless a dataset has its examples by index.

    The base class of iterable datasets has a `__getitem__` too, which does nothing.
    """
    by_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not by_index or isinstance(dataset, IterableDataset):
        raise TypeError(
            f"dataset={dataset!r} must be a map-style dataset: an object with __getitem__ and "
            "__len__. An iterable dataset yields its examples with their indices, or with random "
            "numbers of their own, itself."
        )


def has_own_iteration(dataloader: DataLoader[Any]) -> bool:
    """Return whether a subclass of `DataLoader` overrides how it is iterated over."""
    own = [getattr(type(dataloader), name, None) for name in _ITERATION]
    return own != [getattr(DataLoader, name) for name in _ITERATION]


_ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")


def has_plain_order(dataloader: DataLoader[Any]) -> bool:
    """Return whether the order comes from PyTorch's samplers, which keep nothing themselves."""
    own = dataloader.sampler if dataloader.batch_size is not None else dataloader.batch_sampler
    plain = (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler)
    inner = getattr(own, "sampler", own)
    return type(own) in plain and type(inner) in plain


def with_seeded_fetch(dataloader: DataLoader[Any], epoch: Epoch) -> DataLoader[Any]:
    """Return a copy of a loader whose fetches are seeded; the given loader is not changed.

    Args:
        dataloader: A loader for which `is_map_style` is true.
        epoch: What is fetched.
    """
    loader = _copies.get(dataloader)
    if loader is None:
        loader = _copy(dataloader)
        if dataloader.persistent_workers:
            _copies[dataloader] = loader
    sampler: Any = loader._index_sampler
    sampler.epoch = epoch
    if dataloader.persistent_workers and dataloader.generator is not None:
        sampler.persistent = dataloader.generator, dataloader.generator.get_state()
    return loader


# Persistent workers belong to the copy, so the copy must live as long as the loader.
_copies: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
_in_progress: WeakSet[DataLoader[Any]] = WeakSet()


def fetch_by_workers(dataloader: DataLoader[Any], epoch: Epoch) -> Iterator[Any]:
    """Iterate over `with_seeded_fetch`; an epoch within another one has separate workers.

    Persistent workers would start the epoch in progress again.
    """
    if dataloader in _in_progress:
        dataloader = with_new_workers(dataloader)
    if dataloader.persistent_workers:
        _in_progress.add(dataloader)
    try:
        yield from with_seeded_fetch(dataloader, epoch)
    finally:
        _in_progress.discard(dataloader)


def with_new_workers(dataloader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader that starts new workers; the given loader is not changed."""
    if not dataloader.persistent_workers:
        return dataloader
    return copy_loader(dataloader, persistent_workers=False)


def _copy(dataloader: DataLoader[Any]) -> DataLoader[Any]:
    sampler = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    seeded = SeededIndexSampler(
        getattr(dataloader, sampler), after_a_draw=dataloader.generator is None
    )
    return copy_loader(
        dataloader,
        dataset=SeededDataset(dataloader.dataset),
        worker_init_fn=partial(_init_worker, dataloader.worker_init_fn),
        **{sampler: seeded},
    )


def copy_loader(dataloader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy of a loader with some attributes changed."""
    loader = object.__new__(type(dataloader))
    # DataLoader.__setattr__ forbids assignment after construction.
    vars(loader).update(vars(dataloader), _iterator=None, **changes)
    return loader


def without_workers(loader: Any) -> Any:
    """Return a loader that fetches in this process, since workers may persist; else the same."""
    if not isinstance(loader, DataLoader):
        return loader
    options = {"num_workers": 0, "prefetch_factor": None, "timeout": 0}
    return copy_loader(loader, **options, pin_memory=False, persistent_workers=False)


def fetch_in_process(dataloader: DataLoader[Any], epoch: Epoch) -> Iterator[Any]:
    """Fetch the batches of a loader without workers, without the overhead of its iterator.

    The batches come from `with_seeded_fetch`; iterate over them with `in_epoch`.

    Args:
        dataloader: A loader without workers for which `is_map_style` is true.
        epoch: What is fetched.
    """
    own = dataloader.generator
    sampler = SeededIndexSampler(dataloader._index_sampler, after_a_draw=own is None)
    sampler.epoch = epoch
    indices = iter(sampler)
    if own is not None:  # torch's iterator draws a seed for workers from it
        torch.empty((), dtype=torch.int64).random_(generator=own)
    fetcher: Any = _MapDatasetFetcher(
        dataloader.dataset, dataloader._auto_collation, dataloader.collate_fn, drop_last=False
    )
    for index in indices:
        seed_fetch(index.seed, index.step, index.shard)
        yield fetcher.fetch(index.indices)


class SeededIndexSampler:
    """The batches of a sampler as `SeededIndex` items.

    The order is the same as for a `DataLoader` without workers, iterated right after `seed_epoch`.
    Such a loader draws a seed for its workers after creating the sampler's iterator and before
    requesting the first batch. A loader with workers draws it earlier, and a loader with persistent
    workers only once; here the order is the same for all of them.
    """

    def __init__(self, sampler: Any, *, after_a_draw: bool) -> None:
        self.sampler = sampler
        self.after_a_draw = after_a_draw
        self.draws = draws_during_iteration(sampler)
        self.epoch = Epoch(Key(0), 0, 0)
        self.persistent: tuple[torch.Generator, torch.Tensor] | None = None
        """The generator of a loader with persistent workers, and its state at the start."""

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[SeededIndex]:
        epoch = self.epoch
        seed_epoch(epoch.key, epoch.number)
        if hasattr(self.sampler, "batches_from"):
            return self._number(self.sampler.batches_from(epoch.skip), epoch.skip)
        return self._number(iter(self.sampler), 0)

    def _number(self, batches: Iterator[Any], start: int) -> Iterator[SeededIndex]:
        key, epoch, step, skip, parts, stop = self.epoch
        seed_epoch(key, epoch)
        if self.persistent is not None:
            # The seed of the workers is drawn when they start: in the first epoch of a run, and in
            # any epoch after a resume. The order must be the same.
            generator, began = self.persistent
            generator.set_state(began)
            if epoch == 0:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
        if self.after_a_draw:
            torch.empty((), dtype=torch.int64).random_()
        for i, indices in enumerate(until(stop, batches, start), start):
            if i >= skip:
                for shard, part in ((0, indices),) if parts is None else parts(indices):
                    yield SeededIndex(key.seed, epoch, step + i, part, shard)
            if self.draws:
                seed_order(key, step + i + 1)


def draws_during_iteration(sampler: Any) -> bool:
    """Return whether a sampler may draw from the global generators after its first batch."""
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    # torch's own draw at the start: a seed, or the whole order.
    return type(sampler) not in (RandomSampler, SequentialSampler, SubsetRandomSampler)


class SeededDataset(Dataset[Any]):
    """A dataset that seeds the global generators before each fetch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, index: SeededIndex) -> Any:
        """Return the examples of a batch."""
        return _fetch(getattr(self.dataset, "__getitems__", None) or self._each, index)

    def __getitem__(self, index: SeededIndex) -> Any:
        """Return the item at an index: a whole batch if automatic batching is disabled."""
        return _fetch(lambda one: self.dataset[one], index)

    def _each(self, indices: Iterable[Any]) -> list[Any]:
        return [self.dataset[index] for index in indices]


def _fetch(fetch: Callable[[Any], Any], index: SeededIndex) -> Any:
    seed_fetch(index.seed, index.step, index.shard)
    before = enter_epoch(index.epoch)
    try:
        return fetch(index.indices)
    finally:
        _current_fetch.reset(before)


def _init_worker(then: Callable[[int], object] | None, worker_id: int) -> None:
    """Show the user's dataset in `get_worker_info()`, and call their `worker_init_fn`."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.dataset)  # a WorkerInfo is frozen
    if then is not None:
        then(worker_id)
