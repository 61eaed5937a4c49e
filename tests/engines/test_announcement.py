"""What processes tell one another of their next batches."""

import pytest
import torch

from composable.distributed import Processes
from composable.engines.announcement import PACKED, Announcement
from tests.support.threads import run_ranks

ROWS = [[2, 2**40 + 1, 2**62 + 3, 15, 2**53 + 1, 5, 0, 0], [1, 7, 0, 0, 123456789, 6, 1, 1]]


def announced(rank):
    return Announcement(lambda: ROWS[rank], Processes(rank, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_summed_exactly_in_the_dtype_of_gradients(dtype):
    first, second = (announced(rank) for rank in range(2))
    total = first.pack().to(dtype) + second.pack().to(dtype)
    assert len(total) == 2 * PACKED
    first.unpack(total)
    assert first.wait() == [list(pair) for pair in zip(*ROWS, strict=True)]


def test_processes_wait_for_one_that_has_announced_nothing():
    def work(processes):
        one = announced(processes.rank)
        one.unpack(announced(0).pack())  # rank 1 had nothing to send with the sums
        return one.wait()

    assert run_ranks(work) == [[list(pair) for pair in zip(*ROWS, strict=True)]] * 2
