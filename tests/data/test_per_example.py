"""The random numbers of an example depend on the seed, the epoch and its index alone."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from composable import Key
from composable.data import PerExample, seeded_batches
from tests.data.loaders import DRAWS, Noisy, noise
from tests.support.models import linear, same, weights
from tests.support.runs import make_trainer


def noisy(seed=17, count=9):
    return PerExample([torch.tensor(float(i)) for i in range(count)], seed, lambda x: x + noise())


def epoch_of(dataset, epoch, size=2, **options):
    """Return the value of every example of an epoch."""
    loader = DataLoader(dataset, size, **options)
    return torch.cat(list(seeded_batches(loader, 17, epoch=epoch))).tolist()


@pytest.mark.parametrize("draw", [noise, *DRAWS.values()])
def test_earlier_draws_do_not_change_an_example(draw):
    transformed = PerExample(range(4), 17, lambda i: draw())
    once = transformed[3]

    transformed[2], random.random(), torch.rand(7)

    assert transformed[3] == once == PerExample(range(4), Key(17), lambda i: draw())[3]
    assert PerExample(Noisy(4, draw=draw), 17)[3] == (3, once)  # a dataset that draws itself
    if draw is not DRAWS["seeds"]:
        assert len({once, transformed[2], PerExample(range(4), 18, lambda i: draw())[3]}) == 3


def test_negative_indices_count_from_the_end():
    assert noisy()[-1] == noisy()[8]
    with pytest.raises(IndexError):
        noisy()[9]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_change_no_example():
    persistent = DataLoader(noisy(), 2, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        expected = epoch_of(noisy(), epoch)
        values = torch.cat(list(seeded_batches(persistent, 17, epoch=epoch)))
        assert values.tolist() == expected
        assert epoch_of(noisy(), epoch, num_workers=3 - epoch) == expected
        assert epoch_of(noisy(), epoch, size=5, sampler=range(9)[::-1]) == expected[::-1]
        assert epoch_of(Subset(noisy(), [5, 6]), epoch) == expected[5:7]
    assert epoch_of(noisy(), 1) != epoch_of(noisy(), 2)


def test_another_loader_of_the_dataset_does_not_change_the_epoch_in_progress():
    loader, values = DataLoader(noisy(), 2), []
    for batch in seeded_batches(loader, 17, epoch=3):
        values += batch.tolist()
        list(seeded_batches(loader, 17, epoch=0))  # an evaluation, say

    assert values == epoch_of(noisy(), 3)


def test_its_draws_change_nothing_else_in_a_run():
    def run(dataset):
        loader = DataLoader(dataset, 3, shuffle=True)
        model = torch.nn.Sequential(torch.nn.Dropout(), linear())
        return weights(make_trainer(model, train_dataloader=loader).fit().model)

    data = [(torch.full((4,), float(i)), i % 3) for i in range(9)]

    assert same(run(data), run(PerExample(data, 5, lambda x: (torch.rand(3), x)[1])))
