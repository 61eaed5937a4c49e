"""Batch samplers: global batches, batches of similar length, and batches that grow."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composable import Event, Key
from composable.data import (
    BatchSizeWarmupSampler,
    GlobalBatchSampler,
    LengthGroupedBatchSampler,
    seeded_batches,
)
from composable.functional import warmed_up_batch_size
from tests.support.data import examples
from tests.support.models import linear
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

LENGTHS = [9, 2, 7, 1, 8, 3, 5, 4, 6, 10, 11]


def batches(sampler, epoch=0):
    sampler.set_epoch(epoch)
    assert len(sampler) == len(list(sampler))
    return list(sampler)


def plain(dataset, epoch=0, **options):
    return batches(GlobalBatchSampler(dataset, **{"seed": 17, **options}), epoch)


def grouped(lengths=LENGTHS, epoch=0, **options):
    options = {"batch_size": 2, "seed": 17, **options}
    return batches(LengthGroupedBatchSampler(lengths, **options), epoch)


def growing(length=20, **options):
    how = {"batch_size": 6, "min_batch_size": 2, "duration": 30, "seed": 17}
    return BatchSizeWarmupSampler(length, **{**how, **options})


def epochs_of(sampler, count=3):
    for epoch in range(count):
        sampler.set_epoch(epoch)
        yield list(sampler)


# --- global batches ---


def test_the_order_is_drawn_from_the_key_of_the_epoch():
    before = torch.get_rng_state()

    for seed, epoch in [(17, 3), (17, 0), (18, 3)]:
        generator = Key(seed).fold("order", epoch).generator()
        expected = [torch.randperm(12, generator=generator).tolist()]
        assert plain(12, batch_size=12, seed=seed, epoch=epoch) == expected
        assert plain(range(12), batch_size=12, seed=Key(seed), epoch=epoch) == expected

    assert torch.equal(torch.get_rng_state(), before)
    loader = DataLoader(range(12), batch_sampler=GlobalBatchSampler(12, batch_size=4, seed=5))
    read = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=2)]
    assert read == plain(12, batch_size=4, seed=5, epoch=2)


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
    assert plain(count, shuffle=False, **options) == expected


# --- similar lengths ---


def test_batches_of_a_window_of_the_whole_epoch_are_those_of_the_sorted_lengths():
    *_, rest = plain(11, batch_size=2)

    found = [sorted(LENGTHS[i] for i in batch) for batch in grouped()]

    left = sorted(set(LENGTHS) - {LENGTHS[rest[0]]})
    assert sorted(found[:-1]) == [left[i : i + 2] for i in range(0, 10, 2)]
    assert found != sorted(found)
    assert grouped()[-1] == rest
    assert len({tuple(map(tuple, grouped(epoch=epoch))) for epoch in range(4)}) == 4


def test_incomplete_batch_is_dropped_or_filled_at_random():
    dropped = {
        i
        for epoch in range(99)
        for i in set(range(11)) - set(chain(*grouped(epoch=epoch, last_batch="drop")))
    }
    padded = grouped(last_batch="pad")

    assert dropped == set(range(11))
    assert [len(batch) for batch in padded] == [2] * 6
    assert set(chain(*padded)) == set(range(11))


def test_without_shuffling_every_epoch_is_the_same():
    assert grouped(shuffle=False, epoch=3) == grouped(shuffle=False)
    assert sorted(chain(*grouped(shuffle=False))) == list(range(11))


@pytest.mark.parametrize("kind", [torch.tensor, tuple, lambda given: torch.tensor(given).half()])
def test_lengths_may_be_of_any_kind(kind):
    assert grouped(kind(LENGTHS)) == grouped()


def test_the_order_does_not_change_with_the_lengths_of_the_caller():
    lengths = torch.tensor(LENGTHS, dtype=torch.float64, requires_grad=True)
    sampler = LengthGroupedBatchSampler(lengths, batch_size=2, seed=17)
    lengths.detach().zero_()

    assert list(sampler) == grouped()


# --- growing batches ---


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 3), st.booleans())
def test_order_is_that_of_batches_of_one_size_and_sizes_follow_the_schedule(n, d, step, shuffle):
    how = {"duration": d, "step_size": step, "shuffle": shuffle}
    one_size = GlobalBatchSampler(n, batch_size=6, seed=17, shuffle=shuffle)
    done = 0
    for ours, theirs in zip(epochs_of(growing(n, **how)), epochs_of(one_size), strict=True):
        assert [*chain(*ours)] == [*chain(*theirs)]
        for number, batch in enumerate(ours):
            size = warmed_up_batch_size(
                done, duration=d, min_batch_size=2, max_batch_size=6, step_size=step
            )
            assert len(batch) == size or (number == len(ours) - 1 and len(batch) < size)
            done += len(batch)


def test_without_a_warm_up_it_is_the_sampler_of_one_size():
    one_size = GlobalBatchSampler(20, batch_size=6, seed=17)

    for neutral in (growing(duration=0), growing(min_batch_size=6)):
        assert list(epochs_of(neutral)) == list(epochs_of(one_size))
        assert len(neutral) == len(one_size)
    with pytest.raises(TypeError, match="number of batches of an epoch varies"):
        len(growing())


@pytest.mark.parametrize(("last_batch", "count"), [("keep", 22), ("drop", 18), ("pad", 24)])
def test_the_last_of_the_grown_batches_is_kept_dropped_or_padded(last_batch, count):
    *_, last_epoch = epochs_of(growing(22, last_batch=last_batch))

    assert sum(map(len, last_epoch)) == count


def test_rejects_last_batch_that_is_smaller_than_the_number_of_processes():
    with pytest.raises(ValueError, match="last batch of epoch 0 has 1 examples for 2 processes"):
        list(growing(9, step_size=2, world_size=2))


# --- runs ---


def run(sampler, workers=0, **options):
    data = list(zip(*examples(20), strict=True))
    loader = DataLoader(data, batch_sampler=sampler(), num_workers=workers)
    return make_trainer(linear(), loader, max_duration="60sp", **options).fit()


def test_trainer_counts_the_examples():
    watch = Watch(Event.BATCH_END, read=lambda state: state.timestamp.sample)
    run(growing, callbacks=watch)

    sizes = [b - a for a, b in zip([0, *watch.values], watch.values, strict=False)]
    assert sizes == [len(batch) for epoch in epochs_of(growing()) for batch in epoch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "sampler",
    [growing, lambda: LengthGroupedBatchSampler(range(20), batch_size=3, seed=5, window=2)],
    ids=["growing", "similar lengths"],
)
def test_run_resumes_bit_for_bit_in_mid_epoch(sampler, workers, tmp_path):
    for batch in (3, 9):  # in the first epoch, and in the second
        resumes_exactly(
            lambda **more: run(sampler, **more), tmp_path / str(batch), batch, workers=workers
        )
