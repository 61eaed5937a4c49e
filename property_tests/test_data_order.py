"""Laws of data: its order and its random numbers are functions of the seed and the epoch."""

from itertools import chain, islice

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composable.data import (
    BatchSizeWarmupSampler,
    GlobalBatchSampler,
    LengthGroupedBatchSampler,
    PackedDocuments,
    PerExample,
    WorkerShard,
    read_loader_state,
    seeded_batches,
)
from tests.data.loaders import Noisy
from tests.data.streams import Stateful, noisy
from tests.support.strategies import fewer, seeds

counts = st.integers(1, 13)
sizes = st.integers(1, 5)
epochs = st.integers(0, 100)


def read(dataset, size, *, seed, epoch, skip=0, shuffle=True, **options):
    """Return the batches of an epoch."""
    loader = DataLoader(dataset, size, shuffle=shuffle, collate_fn=list, **options)
    return list(seeded_batches(loader, seed, epoch=epoch, first_step=7 * epoch, skip=skip))


@given(counts, sizes, seeds, epochs, st.booleans(), st.booleans(), st.data())
def test_resumed_epoch_has_the_remaining_batches(
    count, size, seed, epoch, shuffle, drop_last, data
):
    """Law of data: Resuming an epoch at any batch yields exactly the remaining batches, with the
    same augmentation noise; skipped examples are not loaded.
    """
    options = {"seed": seed, "epoch": epoch, "shuffle": shuffle, "drop_last": drop_last}
    whole = read(Noisy(count), size, **options)
    skip = data.draw(st.integers(0, len(whole) + 1))
    left, tail = Noisy(count), whole[skip:]

    assert read(left, size, skip=skip, **options) == tail
    assert left.loaded == [i for batch in tail for i, _ in batch]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@fewer  # processes are slow to start
@given(counts, sizes, seeds, epochs, st.sampled_from([1, 2]), st.booleans(), st.data())
def test_workers_change_neither_order_nor_random_numbers(
    count, size, seed, epoch, workers, persistent, data
):
    """Law of data: Workers, persistent or not, change neither the order nor the random numbers."""
    whole = read(Noisy(count), size, seed=seed, epoch=epoch)
    skip = data.draw(st.integers(0, len(whole)))

    loader = DataLoader(
        Noisy(count),
        size,
        shuffle=True,
        collate_fn=list,
        num_workers=workers,
        persistent_workers=persistent,
    )
    before = {"epoch": max(epoch - 1, 0), "first_step": 0}
    list(seeded_batches(loader, seed, **before))  # an epoch that workers may persist over
    now = {"epoch": epoch, "first_step": 7 * epoch, "skip": skip}

    assert list(seeded_batches(loader, seed, **now)) == whole[skip:]


def read_stream(make, size, workers, *, seed, epoch, drop_last=False, **options):
    """Return the batches of a stream, and its loader."""
    loader = DataLoader(make(), size, collate_fn=list, num_workers=workers, drop_last=drop_last)
    return seeded_batches(loader, seed, epoch=epoch, first_step=7 * epoch, **options), loader


@fewer
@given(counts, sizes, seeds, epochs, st.sampled_from([0, 0, 2]), st.booleans(), st.data())
def test_stream_resumes_from_the_state_of_its_dataset(
    count, size, seed, epoch, workers, sharded, data
):
    """Law of data: A stream with a state yields exactly the remaining batches, with and without
    workers.
    """

    def make():
        return WorkerShard(Stateful(shares=[count]), size) if sharded else Stateful(count)

    options = {"seed": seed, "epoch": epoch}
    whole = list(read_stream(make, size, workers, **options)[0])
    skip = data.draw(st.integers(0, len(whole)))
    batches, loader = read_stream(make, size, workers, **options)
    trained = list(islice(batches, skip))
    state = read_loader_state(loader)
    batches.close()

    rest, _ = read_stream(make, size, workers, skip=skip, loader_state=state, **options)
    assert trained + list(rest) == whole


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@fewer
@given(counts, sizes, seeds, epochs, st.sampled_from([1, 2, 3, 7]), st.booleans())
@example(9, 4, 17, 1, 2, True)
def test_workers_of_a_sharded_stream_change_nothing(count, size, seed, epoch, workers, drop_last):
    """Law of data: The workers of a `WorkerShard` change neither the batches, nor their order, nor
    their random numbers.
    """

    def make():
        return WorkerShard(range(count), size, transform=noisy)

    options = {"seed": seed, "epoch": epoch, "drop_last": drop_last}
    whole, ours = (list(read_stream(make, size, n, **options)[0]) for n in (0, workers))
    assert ours == whole
    left = count - count % size if drop_last else count
    assert [number for batch in whole for number, _ in batch] == list(range(left))


@given(counts, sizes, sizes, seeds, seeds, epochs)
def test_noise_of_an_example_depends_only_on_seed_epoch_and_index(
    count, size, other_size, seed, seed_of_the_run, epoch
):
    """Law of data: With `PerExample`, the random numbers of an example depend only on its seed, the
    epoch and the index.
    """

    def examples(size, run, shuffle):
        batches = read(PerExample(Noisy(count), seed), size, seed=run, epoch=epoch, shuffle=shuffle)
        return sorted(example for batch in batches for example in batch)

    assert examples(size, 17, True) == examples(other_size, seed_of_the_run, False)


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=40)
windows = st.integers(1, 5)
last_batches = st.sampled_from(["keep", "drop", "pad"])
ways = st.fixed_dictionaries({"shuffle": st.booleans(), "last_batch": last_batches})


@given(lengths, st.none() | windows, sizes, st.integers(1, 4), seeds, epochs, ways, st.data())
def test_the_global_batch_is_the_same_for_any_number_of_processes(
    lengths, window, per_process, world_size, seed, epoch, way, data
):
    """Law of data: The global batch of a `GlobalBatchSampler`, or of a `LengthGroupedBatchSampler`,
    is the same for any number of processes, starting from any batch.

    Law of data: Each of its epochs contains every example once.
    """
    count, batch_size = len(lengths), per_process * world_size
    if way["last_batch"] == "keep" and 0 < count % batch_size < world_size:
        way = {**way, "last_batch": "pad"}  # some process would have nothing to do

    def batches(start=0, **which):
        given = {"batch_size": batch_size, "seed": seed, **way, **which}
        sampler = (
            GlobalBatchSampler(count, **given)
            if window is None
            else LengthGroupedBatchSampler(lengths, window=window, **given)
        )
        sampler.set_epoch(epoch)
        return list(sampler.batches_from(start))

    whole = batches()
    parts = [batches(rank=rank, world_size=world_size) for rank in range(world_size)]
    start = data.draw(st.integers(0, len(whole) + 1))

    assert [list(chain(*of_all)) for of_all in zip(*parts, strict=True)] == whole
    for of_all in zip(*parts, strict=True):
        assert max(map(len, of_all)) - min(map(len, of_all)) <= (way["last_batch"] == "keep")
    for rank in range(world_size):
        assert batches(start, rank=rank, world_size=world_size) == parts[rank][start:]
    if way["last_batch"] == "keep":
        assert sorted(chain(*whole)) == list(range(count))


documents = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)
packings = st.sampled_from(["concatenate", "first_fit"])


def packed(sizes, length, seed, packing):
    """Return rows of documents whose tokens are all different."""
    tokens = torch.arange(1, sum(sizes) + 1).split(sizes)
    return PackedDocuments(list(tokens), length, seed=seed, packing=packing)


@given(documents, st.integers(1, 6), seeds, epochs, packings)
def test_every_epoch_of_packed_documents_has_every_token_once(sizes, length, seed, epoch, packing):
    """Law of data: Each epoch of `PackedDocuments` has every token once, in order within a part of
    a document, in equally many rows.
    """
    rows = packed(sizes, length, seed, packing)
    count = len(rows)
    rows.set_epoch(epoch)

    found = [row["input_ids"].tolist() for row in rows]
    ordered = [
        ids[numbers == number].diff().tolist()
        for ids, numbers in ((row["input_ids"], row["document_ids"]) for row in rows)
        for number in range(1, int(numbers.max()) + 1)
    ]

    assert sorted(filter(None, chain(*found))) == list(range(1, sum(sizes) + 1))
    assert set(chain(*ordered)) <= {1}
    assert len(found) == count


@given(documents, st.integers(1, 6), seeds, epochs, packings, st.sampled_from([2, 3]), st.data())
def test_packed_rows_are_the_same_after_a_resume_and_on_any_number_of_processes(
    sizes, length, seed, epoch, packing, world_size, data
):
    """Law of data: The rows of `PackedDocuments` are the same after a resume in mid-epoch, and on
    any number of processes.
    """

    def batches(skip=0, **which):
        rows = packed(sizes, length, seed, packing)
        sampler = GlobalBatchSampler(rows, batch_size=6, seed=seed, last_batch="pad", **which)
        loader = DataLoader(rows, batch_sampler=sampler)
        read = seeded_batches(loader, 17, epoch=epoch, first_step=7 * epoch, skip=skip)
        return [batch["input_ids"].tolist() for batch in read]

    whole = batches()
    skip = data.draw(st.integers(0, len(whole)))
    parts = [batches(skip, rank=rank, world_size=world_size) for rank in range(world_size)]

    assert [list(chain(*of_all)) for of_all in zip(*parts, strict=True)] == whole[skip:]


@given(seeds, epochs)
def test_epochs_of_packed_documents_differ(seed, epoch):
    """Law of data: Two epochs of `PackedDocuments` differ."""
    rows = packed([2] * 40, 10, seed, "concatenate")
    loader = DataLoader(rows, batch_size=None)
    first, second = (
        [row["input_ids"].tolist() for row in seeded_batches(loader, 17, epoch=one)]
        for one in (epoch, epoch + 1)
    )

    assert first != second


@given(lengths, st.integers(1, 4), windows, seeds, epochs, last_batches)
def test_windows_of_similar_lengths_have_the_examples_of_the_plain_order(
    given_lengths, batch_size, window, seed, epoch, last_batch
):
    """Law of data: Each window of a `LengthGroupedBatchSampler` has the examples of the same window
    of a `GlobalBatchSampler`, in batches that need no more padding; a window of 1 changes nothing.
    """
    options = {"batch_size": batch_size, "seed": seed, "last_batch": last_batch}
    plain = GlobalBatchSampler(len(given_lengths), **options)
    ours = LengthGroupedBatchSampler(given_lengths, window=window, **options)
    for sampler in (plain, ours):
        sampler.set_epoch(epoch)
    before, after = list(plain), list(ours)

    def padded(batches):
        return sum(max(given_lengths[i] for i in batch) for batch in batches)

    assert [len(batch) for batch in after] == [len(batch) for batch in before]
    for first in range(0, len(before), window):
        here, there = (batches[first : first + window] for batches in (after, before))
        assert sorted(chain(*here)) == sorted(chain(*there))
        assert padded(here) <= padded(there)
    if window == 1:
        assert after == before


@given(lengths, seeds, epochs, st.sampled_from([2, 3]), last_batches, st.data())
def test_growing_batches_are_the_same_for_any_number_of_processes(
    given_lengths, seed, epoch, world_size, last_batch, data
):
    """Law of data: The global batch of a `BatchSizeWarmupSampler` is the same for any number of
    processes, starting from any batch.
    """
    growing = (epoch + 1) * len(given_lengths)  # until the end of the epoch
    own = {"duration": growing, "min_batch_size": world_size, "step_size": world_size}

    def batches(start=0, **which):
        sampler = BatchSizeWarmupSampler(
            given_lengths, batch_size=6, seed=seed, last_batch=last_batch, **own, **which
        )
        sampler.set_epoch(epoch)
        return list(sampler.batches_from(start))

    whole = batches()
    assume(all(len(batch) >= world_size for batch in whole))
    start = data.draw(st.integers(0, len(whole)))
    parts = [batches(start, rank=rank, world_size=world_size) for rank in range(world_size)]

    assert [list(chain(*of_all)) for of_all in zip(*parts, strict=True)] == whole[start:]
