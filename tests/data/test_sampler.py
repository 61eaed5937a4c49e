"""Global batches are divided among processes."""

import pytest
import torch
from torch.utils.data import DataLoader

from composable import Key
from composable.data import GlobalBatchSampler, seeded_batches


def batches(*arguments, epoch=0, **options):
    sampler = GlobalBatchSampler(*arguments, **{"seed": 17, **options})
    sampler.set_epoch(epoch)
    assert len(sampler) == len(list(sampler))
    return list(sampler)


def test_the_order_is_drawn_from_the_key_of_the_epoch():
    before = torch.get_rng_state()

    for seed, epoch in [(17, 3), (17, 0), (18, 3)]:
        generator = Key(seed).fold("order", epoch).generator()
        expected = [torch.randperm(12, generator=generator).tolist()]
        assert batches(12, batch_size=12, seed=seed, epoch=epoch) == expected
        assert batches(range(12), batch_size=12, seed=Key(seed), epoch=epoch) == expected

    assert torch.equal(torch.get_rng_state(), before)
    loader = DataLoader(range(12), batch_sampler=GlobalBatchSampler(12, batch_size=4, seed=5))
    read = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=2)]
    assert read == batches(12, batch_size=4, seed=5, epoch=2)


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (10, {"batch_size": 4, "last_batch": "keep"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        (10, {"batch_size": 4, "last_batch": "drop"}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (10, {"batch_size": 4, "last_batch": "pad"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]),
        (3, {"batch_size": 8, "last_batch": "pad"}, [[0, 1, 2, 0, 1, 2, 0, 1]]),
        (11, {"batch_size": 8, "rank": 0, "world_size": 2}, [[0, 1, 2, 3], [8]]),
        (11, {"batch_size": 8, "rank": 1, "world_size": 2}, [[4, 5, 6, 7], [9, 10]]),
    ],
)
def test_last_batch(count, options, expected):
    assert batches(count, shuffle=False, **options) == expected
