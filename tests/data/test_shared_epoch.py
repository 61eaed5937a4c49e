"""The epoch reaches what depends on it, also inside of other iterables."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from composable.data import (
    GlobalBatchSampler,
    LengthGroupedBatchSampler,
    PackedDocuments,
    PerExample,
    seeded_batches,
)
from tests.support.processes import forkserver

OPTIONS = {"batch_size": 3, "seed": 17}


class Wrapped:
    """An iterable around a loader, of which nothing but its iteration is known."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


class Telling(Wrapped):
    """A wrapper that passes the epoch on."""

    def set_epoch(self, epoch):
        self.loader.dataset.set_epoch(epoch)


class Repeated(Wrapped):
    """A wrapper that counts its own epochs, two in each one of the run."""

    def __iter__(self):
        for epoch in range(2):
            self.loader.batch_sampler.set_epoch(epoch)
            yield from self.loader


class Rows(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return (self.rows[i] for i in range(len(self.rows)))


class CustomLoader(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def packed():
    return PackedDocuments([torch.arange(n) + 10 * n for n in (3, 4, 9, 1, 5)], 4, seed=17)


def noisy():
    return PerExample(range(4), 17, transform=lambda x: x + torch.rand(()))


def of_dataset(dataset, **options):
    return DataLoader(dataset, 2, collate_fn=list, **options)


def of_sampler(sampler):
    return DataLoader(range(12), batch_sampler=sampler, collate_fn=list)


def epochs(loader):
    return [str(list(seeded_batches(loader, 17, epoch=epoch))) for epoch in range(3)]


LOADERS = {
    "rows in a wrapped loader": lambda: Wrapped(of_dataset(packed())),
    "and workers": lambda: Wrapped(of_dataset(packed(), num_workers=2)),
    "and persistent ones": lambda: Telling(
        of_dataset(packed(), num_workers=1, persistent_workers=True)
    ),
    "rows in a stream": lambda: of_dataset(Rows(packed())),
    "and its workers": lambda: of_dataset(
        Rows(packed()), num_workers=1, multiprocessing_context=forkserver
    ),
    "a part of the rows in a loader of its own": lambda: CustomLoader(
        Subset(packed(), range(4)), 2, collate_fn=list
    ),
    "random numbers of examples": lambda: Wrapped(of_dataset(noisy())),
    "a sampler": lambda: Wrapped(of_sampler(GlobalBatchSampler(12, **OPTIONS))),
    "a sampler by length": lambda: Wrapped(
        of_sampler(LengthGroupedBatchSampler(range(12), **OPTIONS))
    ),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_every_epoch_has_an_order_of_its_own_inside_of_other_iterables(make):
    assert len(set(epochs(make()))) == 3


def test_a_loader_is_as_it_is_inside_of_another_iterable():
    plain, wrapped = (of_sampler(GlobalBatchSampler(12, **OPTIONS)) for _ in range(2))

    assert epochs(plain) == epochs(Wrapped(wrapped))


@pytest.mark.parametrize("make", [packed, noisy])
def test_set_epoch_reaches_persistent_workers_in_a_plain_loop(make):
    loader = of_dataset(make(), num_workers=1, persistent_workers=True)
    for epoch, expected in enumerate(epochs(of_dataset(make()))):
        loader.dataset.set_epoch(epoch)
        assert str(list(loader)) == expected


def test_an_iterable_that_sets_the_epoch_itself_keeps_its_own():
    loader = of_sampler(GlobalBatchSampler(12, **OPTIONS))
    first, second = epochs(loader)[:2]

    assert epochs(Repeated(loader)) == [first[:-1] + ", " + second[1:]] * 3


def test_the_epoch_reaches_the_dataset_of_another_one():
    rows = packed()
    PerExample(rows, 17).set_epoch(2)

    assert torch.equal(rows[0]["input_ids"], packed_at(2)[0]["input_ids"])


def packed_at(epoch):
    rows = packed()
    rows.set_epoch(epoch)
    return rows
