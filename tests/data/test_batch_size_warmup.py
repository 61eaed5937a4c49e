"""Batches that grow in the course of training."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from composable import Event
from composable.data import BatchSizeWarmupSampler, GlobalBatchSampler
from composable.functional import warmed_up_batch_size
from tests.support.models import same, weights
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer

ALWAYS_SAVED = {"save_interval": "1ba", "autoresume": True}
GROW = {"batch_size": 6, "min_batch_size": 2, "duration": 30, "seed": 17}


def sampler(length=20, **options):
    return BatchSizeWarmupSampler(length, **{**GROW, **options})


def epochs_of(one, count=3):
    for epoch in range(count):
        one.set_epoch(epoch)
        yield list(one)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 3), st.booleans())
def test_order_is_that_of_batches_of_one_size_and_sizes_follow_the_schedule(n, d, step, shuffle):
    how = {"duration": d, "step_size": step, "shuffle": shuffle}
    plain = GlobalBatchSampler(n, batch_size=6, seed=17, shuffle=shuffle)
    done = 0
    for ours, theirs in zip(epochs_of(sampler(n, **how)), epochs_of(plain), strict=True):
        assert [*chain(*ours)] == [*chain(*theirs)]
        for number, batch in enumerate(ours):
            size = warmed_up_batch_size(
                done, duration=d, min_batch_size=2, max_batch_size=6, step_size=step
            )
            assert len(batch) == size or (number == len(ours) - 1 and len(batch) < size)
            done += len(batch)


def test_without_a_warm_up_it_is_the_sampler_of_one_size():
    plain = GlobalBatchSampler(20, batch_size=6, seed=17)

    for neutral in (sampler(duration=0), sampler(min_batch_size=6)):
        assert list(epochs_of(neutral)) == list(epochs_of(plain))
        assert len(neutral) == len(plain)
    with pytest.raises(TypeError, match="number of batches of an epoch varies"):
        len(sampler())


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_global_batch_is_the_same_for_any_number_of_processes(last_batch):
    whole = list(epochs_of(sampler(22, last_batch=last_batch, step_size=2)))
    parts = [
        list(epochs_of(sampler(22, last_batch=last_batch, step_size=2, rank=rank, world_size=2)))
        for rank in range(2)
    ]

    joined = [
        [one + other for one, other in zip(*epochs, strict=True)]
        for epochs in zip(*parts, strict=True)
    ]
    assert joined == whole
    kept = {"keep": 22, "drop": 18, "pad": 22}[last_batch]
    assert sum(map(len, whole[-1])) == (24 if last_batch == "pad" else kept)


@pytest.mark.parametrize("epoch", [0, 1])
def test_iteration_starts_at_any_batch(epoch):
    one = sampler()
    one.set_epoch(epoch)

    for start in range(len(list(one)) + 1):
        assert list(one.batches_from(start)) == list(one)[start:]


def run(folder=None, *callbacks):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(20, 4, generator=generator), torch.randint(3, (20,), generator=generator)
    )
    loader = DataLoader(data, batch_sampler=sampler())
    watch = Watch(Event.BATCH_END, read=lambda state: state.timestamp.sample)
    trainer = make_trainer(
        loader=loader,
        max_duration="60sp",
        callbacks=[watch, *callbacks],
        **({} if folder is None else ALWAYS_SAVED | {"save_folder": folder}),
    )
    return trainer.fit(), watch.values


def test_trainer_counts_the_examples_and_resumes_exactly(tmp_path):
    whole, counts = run()
    sizes = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    assert sizes == [len(batch) for epoch in epochs_of(sampler()) for batch in epoch]

    for batch in (3, 9):  # in the first epoch, and in the second
        folder = tmp_path / str(batch)
        with pytest.raises(RuntimeError, match="stop"):
            run(folder, Raise(RuntimeError("stop"), batch=batch))
        resumed, rest = run(folder)
        assert rest == counts[batch:]
        assert same(weights(resumed.model), weights(whole.model))


def test_rejects_last_batch_that_is_smaller_than_the_number_of_processes():
    with pytest.raises(ValueError, match="last batch of epoch 0 has 1 examples for 2 processes"):
        list(sampler(9, world_size=2))
