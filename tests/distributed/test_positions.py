"""Epochs that several processes resume with another batch size, or as another number."""

import warnings
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from composable import Event
from composable.data import GlobalBatchSampler
from composable.distributed import Processes
from tests.support.models import linear
from tests.support.observers import Watch
from tests.support.processes import attempt, run
from tests.support.runs import make_trainer

COUNT = 24


def divided(data, size, rank, processes):
    """Let each process have batches of its own: of a global batch, its part."""
    sampler = DistributedSampler(data, processes, rank)
    return DataLoader(data, size // processes, sampler=sampler)


def in_parts(data, size, rank, processes):
    sampler = GlobalBatchSampler(data, batch_size=size, seed=3, rank=rank, world_size=processes)
    return DataLoader(data, batch_sampler=sampler)


def whole(data, size, rank, processes):
    return DataLoader(data, size, shuffle=True)


def read(make, size, folder, length):
    """Train, and return the examples of each batch of this process."""
    warnings.simplefilter("ignore")
    own = Processes.current()
    data = TensorDataset(torch.arange(COUNT).repeat(4, 1).T.float(), torch.zeros(COUNT).long())
    seen = Watch(Event.AFTER_DATALOADER, read=lambda state: state.batch[0][:, 0].int().tolist())
    make_trainer(
        linear(),
        make(data, size, own.rank, own.size),
        callbacks=seen,
        max_duration=length,
        save_folder=folder,
        autoresume=True,
    ).fit()
    return seen.values


@pytest.mark.parametrize(("size", "processes"), [(4, 2), (8, 2), (8, 1)])
@pytest.mark.parametrize("make", [whole, divided, in_parts])
def test_processes_read_each_example_once(make, size, processes, tmp_path):
    first = run(partial(read, make, 4, str(tmp_path), "2ba"), 2)
    rest = run(partial(read, make, size, str(tmp_path), "1ep"), processes)

    found = [i for one in (*first, *rest) for batch in one for i in batch]
    assert sorted(found) == list(range(COUNT))


def test_a_batch_size_that_does_not_divide_is_refused_by_each_process(tmp_path):
    run(partial(read, divided, 4, str(tmp_path), "1ba"), 2)

    for one in attempt(partial(read, divided, 8, str(tmp_path), "1ep"), 2):
        assert one.kind == "MismatchError"
        assert "after 4 examples, with accumulate_batches=1 and batch_size=4" in one.message
