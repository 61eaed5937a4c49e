"""Streams that are divided among workers, and streams that are not."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from composable.data import UnshardedStreamWarning, WorkerShard
from tests.data.loaders import read
from tests.data.streams import Plain, Stateful


def test_each_worker_transforms_its_own_examples_only():
    count = torch.zeros((), dtype=torch.int64).share_memory_()

    def transform(number):
        count.add_(1)
        return number

    list(DataLoader(WorkerShard(range(12), 2, transform), 2, num_workers=2))
    assert count == 12


def test_the_epoch_reaches_the_stream():
    dataset = Plain(4)
    assert [x // 1 % 10 for x, _ in read(DataLoader(WorkerShard(dataset, 2), None), epoch=3)] == [
        3
    ] * 4


def test_rejects_a_loader_with_another_batch_size():
    with pytest.raises(ValueError, match=r"batch_size=2.* its WorkerShard has batch_size=3"):
        read(DataLoader(WorkerShard(range(6), 3), 2, num_workers=1))
    assert len(read(DataLoader(WorkerShard(range(6), 3), 2))) == 3


# --- streams that are not divided ---


class Whole(IterableDataset):
    """A stream that every worker reads as a whole."""

    begin = 0

    def __iter__(self):
        return iter(range(self.begin, 8))


class Random(Whole):
    def __iter__(self):
        info = get_worker_info()
        generator = torch.Generator().manual_seed(0 if info is None else info.seed)
        return iter(torch.rand(4, generator=generator))


class StatefulWhole(Stateful):
    def mine(self):
        return range(6)


def divide(worker):
    get_worker_info().dataset.begin = 4 * worker


@pytest.mark.parametrize(
    ("make", "options", "warns"),
    [
        (Whole, {"num_workers": 2}, True),
        (Whole, {"num_workers": 2, "persistent_workers": True}, True),
        (Whole, {"num_workers": 2, "batch_size": 8}, True),  # the epoch has a batch per worker
        (StatefulWhole, {"num_workers": 2}, True),
        (Whole, {"num_workers": 0}, False),
        (Whole, {"num_workers": 1}, False),
        (Whole, {"num_workers": 2, "worker_init_fn": divide}, False),
        (Random, {"num_workers": 2}, False),
        (Plain, {"num_workers": 2}, False),
        (Stateful, {"num_workers": 2}, False),
        (lambda: WorkerShard(Whole(), 2), {"num_workers": 2}, False),
    ],
)
def test_warns_if_no_worker_asks_which_one_it_is(make, options, warns):
    loader = DataLoader(make(), **{"batch_size": 2, **options})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(loader), read(loader, epoch=2)
    assert [one.category for one in caught] == [UnshardedStreamWarning] * warns
    if warns:
        assert "every example 2 times" in str(caught[0].message)
        assert caught[0].filename == __file__.replace("test_worker_shard", "loaders")
