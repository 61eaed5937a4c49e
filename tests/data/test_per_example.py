"""The random numbers of an example depend on the seed, the epoch and its index alone."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from composable import Key
from composable.data import PerExample, seeded_batches
from tests.support.tiny import linear, make_trainer, same, weights


def jitter(x):
    return x + torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002


def noisy(seed=17, count=9):
    return PerExample([torch.tensor(float(i)) for i in range(count)], seed, jitter)


def by_example(dataset, *, epoch, size=2, seed=17, order=None, **options):
    """Return the value of every example of an epoch."""
    order = list(range(len(dataset))) if order is None else order
    loader = DataLoader(dataset, size, sampler=order, **options)
    values = torch.cat(list(seeded_batches(loader, seed, epoch=epoch))).tolist()
    return dict(zip(order, values, strict=True))


def test_an_example_is_the_same_whatever_was_drawn_before():
    dataset = noisy()
    once = dataset[3]

    dataset[4], random.random(), torch.rand(7), np.random.rand()  # noqa: NPY002

    assert dataset[3] == once
    assert noisy(Key(17))[3] == once
    assert noisy(18)[3] != once


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, np.random.rand])
def test_each_generator_belongs_to_the_example(draw):
    dataset = PerExample(range(4), 17, lambda i: float(draw()))

    assert dataset[1] == dataset[1]
    assert len({dataset[i] for i in range(4)}) == 4


def test_a_data_set_that_draws_itself_is_seeded_too():
    class Draws(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.rand(())

    dataset = PerExample(Draws(), 17)

    assert dataset[1] == dataset[1] != dataset[2]


def test_the_last_example_may_be_counted_from_the_end():
    assert noisy()[-1] == noisy()[8]
    with pytest.raises(IndexError):
        noisy()[9]


def test_batches_and_order_change_no_example():
    dataset = noisy()
    backwards = list(range(9))[::-1]

    expected = by_example(dataset, epoch=2)

    assert by_example(dataset, epoch=2, size=5, order=backwards) == expected
    assert by_example(dataset, epoch=2, seed=18) == expected
    assert by_example(dataset, epoch=1) != expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_change_no_example_persistent_or_not():
    persistent = DataLoader(noisy(), 2, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        expected = by_example(noisy(), epoch=epoch)
        values = torch.cat(list(seeded_batches(persistent, 17, epoch=epoch)))
        assert dict(enumerate(values.tolist())) == expected
        assert by_example(noisy(), epoch=epoch, num_workers=3 - epoch) == expected


def test_it_may_lie_below_other_data_sets():
    expected = by_example(noisy(), epoch=3)
    subset = Subset(noisy(), [5, 6])

    assert by_example(subset, epoch=3) == {0: expected[5], 1: expected[6]}


def test_set_epoch_reaches_workers_that_persist_in_a_plain_loop():
    dataset = noisy()
    loader = DataLoader(dataset, 3, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        values = torch.cat(list(loader)).tolist()
        assert values == list(by_example(noisy(), epoch=epoch).values())


def test_another_loader_of_the_data_set_changes_no_epoch_at_work():
    dataset = noisy()
    expected = by_example(dataset, epoch=3)
    loader = DataLoader(dataset, 2)

    values = []
    for batch in seeded_batches(loader, 17, epoch=3):
        values += batch.tolist()
        list(seeded_batches(loader, 17, epoch=0))  # an evaluation, say

    assert values == list(expected.values())


def test_its_draws_change_nothing_else_in_a_run():
    def run(dataset):
        loader = DataLoader(dataset, 3, shuffle=True)
        model = torch.nn.Sequential(torch.nn.Dropout(), linear())
        return weights(make_trainer(model, train_dataloader=loader).fit().model)

    data = [(torch.full((4,), float(i)), i % 3) for i in range(9)]

    assert same(run(data), run(PerExample(data, 5, lambda x: (torch.rand(3), x)[1])))


def test_what_has_no_examples_by_index_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(TypeError, match="must be a map-style dataset"):
        PerExample(Stream(), 17)
    with pytest.raises(TypeError, match="transform='flip' must be a function"):
        PerExample([1], 17, "flip")
    with pytest.raises(ValueError, match="seed=-1"):
        PerExample([1], -1)
