"""A validation and a test half of the data of an evaluation."""

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from composable import Evaluator
from composable.comparison.building import split_evaluators


def split(loader):
    return split_evaluators([Evaluator("eval", loader, eval_interval="3ba")])


def seen(loader):
    return [int(one) for (batch,) in loader for one in batch]


def test_each_example_is_in_one_half():
    data = TensorDataset(torch.arange(11))
    validation, test = split(DataLoader(data, batch_size=4))

    first, second = seen(validation.dataloader), seen(test.dataloader)
    assert sorted(first + second) == list(range(11))
    assert (len(first), len(second)) == (5, 6)
    assert first != list(range(5))  # labels are often sorted
    assert (validation.label, test.label) == ("validation", "test")
    assert validation.eval_interval == "3ba"


def test_the_halves_are_the_same_in_every_trial():
    data = TensorDataset(torch.arange(20))
    halves = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        halves.append(seen(split(DataLoader(data, batch_size=4, shuffle=True))[0].dataloader))

    assert halves[0] == halves[1]


def test_keeps_how_examples_are_collated():
    data = TensorDataset(torch.arange(4))
    loader = DataLoader(data, batch_size=2, collate_fn=lambda rows: len(rows))

    assert list(split(loader)[0].dataloader) == [2]


def test_splits_a_list_of_batches():
    validation, test = split([1, 2, 3, 4])

    assert sorted(validation.dataloader + test.dataloader) == [1, 2, 3, 4]
    assert len(validation.dataloader) == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class Batches:
    def __iter__(self):
        return iter([1, 2])


FOUR = TensorDataset(torch.arange(4))
SAMPLER = [[0, 1], [2, 3]]
REFUSED = {
    "a stream": (DataLoader(Stream(), batch_size=2), "a Stream and a _Infinite"),
    "a loader of its own": (Batches(), "it is a Batches"),
    "a batch sampler": (
        DataLoader(FOUR, batch_sampler=SAMPLER),
        "batch_size=None, a TensorDataset",
    ),
    "a sampler of some examples": (
        DataLoader(FOUR, sampler=SubsetRandomSampler([0, 1, 2])),
        "a SubsetRandomSampler. Pass two evaluators",
    ),
    "a sampler that repeats examples": (
        DataLoader(FOUR, sampler=RandomSampler(FOUR, replacement=True)),
        "a RandomSampler",
    ),
    "a sampler of fewer examples": (
        DataLoader(FOUR, sampler=RandomSampler(FOUR, num_samples=2)),
        "a RandomSampler",
    ),
    "one example": (DataLoader(TensorDataset(torch.arange(1))), "at least 2 examples"),
    "one batch": ([1], "at least 2 batches"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_data_that_cannot_be_split(case):
    loader, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        split(loader)
