"""Batches are copied to a GPU beside the steps."""

import time

import pytest
import torch

from composable._support.tree import map_tensors
from composable.data.prefetch import CopyStream, Prefetcher


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_equal_on_the_gpu(pinned):
    given = [(torch.randn(64, 1024), {"y": torch.arange(64) + i}) for i in range(20)]
    if pinned:
        given = [map_tensors(torch.Tensor.pin_memory, batch) for batch in given]
    fetched = Prefetcher(given, CopyStream(torch.device("cuda")))

    sums = []
    for x, rest in fetched:
        fetched.fetch()
        for _ in range(20):
            x = x @ torch.eye(1024, device="cuda")  # keeps the GPU busy while the next is copied
        sums.append((x.sum(), rest["y"].sum()))
        del x, rest
    for (ours, labels), (x, rest) in zip(sums, given, strict=True):
        torch.testing.assert_close(ours.cpu(), x.sum(), rtol=1e-4, atol=1e-2)
        assert labels.cpu() == rest["y"].sum()


def test_the_host_waits_for_no_copy():
    fetched = Prefetcher(
        [torch.randn(256, 1024) for _ in range(4)], CopyStream(torch.device("cuda"))
    )
    next(fetched)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fetched.fetch()
        next(fetched)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(torch.version.cuda == "simulated", reason="a simulated GPU does not overlap")
@pytest.mark.slow
def test_a_copy_overlaps_with_a_step():
    host = [torch.randn(2**25).pin_memory() for _ in range(8)]
    weight = torch.randn(4096, 4096, device="cuda")

    def run(ahead):
        fetched = Prefetcher(host, CopyStream(torch.device("cuda")))
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in fetched:
            for _ in range(10):
                weight @ weight
            if ahead:
                fetched.fetch()
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run(True), run(False)
    assert min(run(True) for _ in range(3)) < 0.95 * min(run(False) for _ in range(3))
