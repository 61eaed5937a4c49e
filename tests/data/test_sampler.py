"""Global batches are shared out among processes."""

from itertools import chain

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


def test_an_order_is_a_permutation_that_seed_and_epoch_determine():
    first = batches(12, batch_size=5)

    assert sorted(chain(*first)) == list(range(12))
    assert first == batches(range(12), batch_size=5, seed=Key(17))
    assert first != batches(12, batch_size=5, epoch=1)
    assert first != batches(12, batch_size=5, seed=18)


def test_the_order_is_that_of_its_key():
    generator = Key(17).fold("order", 3).generator()
    expected = torch.randperm(12, generator=generator).tolist()

    assert batches(12, batch_size=12, epoch=3) == [expected]


def test_no_global_generator_is_asked():
    before = torch.get_rng_state()

    batches(12, batch_size=4)

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("last_batch", "expected"),
    [
        ("keep", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ("drop", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("pad", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]),
    ],
)
def test_a_short_last_batch_is_kept_dropped_or_filled_up(last_batch, expected):
    assert batches(10, batch_size=4, shuffle=False, last_batch=last_batch) == expected


def test_a_small_data_set_fills_a_batch_by_going_around():
    assert batches(3, batch_size=8, shuffle=False, last_batch="pad") == [[0, 1, 2, 0, 1, 2, 0, 1]]


def test_a_short_batch_is_shared_out_as_evenly_as_can_be():
    parts = [
        batches(11, batch_size=8, shuffle=False, rank=rank, world_size=2)[1] for rank in range(2)
    ]

    assert parts == [[8], [9, 10]]


def test_it_is_told_the_epoch_with_the_batches():
    loader = DataLoader(range(12), batch_sampler=GlobalBatchSampler(12, batch_size=4, seed=5))

    read = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=2)]

    assert read == batches(12, batch_size=4, seed=5, epoch=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be a positive integer"),
        ({"batch_size": True}, "batch_size=True must be"),
        ({"world_size": 0}, "world_size=0 must be"),
        ({"rank": 2, "world_size": 2}, "rank=2 must be between 0 and 1"),
        ({"rank": -1}, "rank=-1 must be between 0 and 0"),
        ({"world_size": 3}, "batch_size=4 must be a multiple of world_size=3"),
        ({"last_batch": "wrap"}, "last_batch='wrap' must be one of"),
        ({"dataset": 0}, "dataset has 0 examples"),
        ({"dataset": 9, "world_size": 2}, "has 1 examples for 2 processes"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GlobalBatchSampler(**{"dataset": 10, "batch_size": 4, "seed": 17, **options})
