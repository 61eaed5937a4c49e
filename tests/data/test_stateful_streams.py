"""A DataLoader of an iterable dataset with a state resumes from it, with and without workers."""

import copy
import warnings
from contextlib import nullcontext
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from composable import Event
from composable.checkpoint import MismatchError
from composable.data import (
    ReplayedBatchesWarning,
    WorkerShard,
    read_loader_state,
    seeded_batches,
)
from tests.data.loaders import numbers, read
from tests.data.streams import Counted, Live, Plain, Stateful
from tests.support.campaign import drawn, each_once
from tests.support.models import linear, same, weights
from tests.support.observers import Raise
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

WORKERS = {
    "no workers": {},
    "one": {"num_workers": 1},
    "ahead": {"num_workers": 2, "prefetch_factor": 4},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
DATASETS = {
    "own state": Stateful,
    "live state": Live,
    "uneven": lambda: Stateful(shares=[3, 7, 1]),
    "sharded": lambda: WorkerShard(Stateful(shares=[13]), 2),
}


def begin(loader, count):
    """Train on some batches, and return their numbers and the state of the loader."""
    batches = seeded_batches(loader, 17, epoch=1, first_step=4)
    first = [numbers(next(batches)) for _ in range(count)]
    state = read_loader_state(loader)
    batches.close()
    return first, state


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("dataset", "workers", "counts"),
    each_once(list(DATASETS), list(WORKERS), [(0, 2), (1, 0, 2), (2, 0, 0, 1), (3, 1, 0), (99,)]),
)
def test_resumes_from_the_state_of_the_batches_that_were_returned(dataset, workers, counts):
    """Also from one that is read before the first batch, and after the last."""

    def loader():
        return DataLoader(DATASETS[dataset](), 2, **WORKERS[workers])

    done, state = [], None
    for count in counts:
        again = loader()
        where = {"skip": len(done), "loader_state": state} if done else {}
        batches = seeded_batches(again, 17, epoch=1, first_step=4, **where)
        done += map(numbers, islice(batches, count))
        state = read_loader_state(again)
        batches.close()

    last = loader()
    assert done + read(last, skip=len(done), loader_state=state) == read(loader())
    assert read(last, epoch=2) == read(loader(), epoch=2)


def test_a_resume_reads_no_example_again():
    for workers in (0, 2):
        _, state = begin(DataLoader(Stateful(), 2, num_workers=workers), 4)
        dataset = Stateful()
        rest = read(DataLoader(dataset, 2, num_workers=workers), skip=4, loader_state=state)

        assert dataset.read == sum(len(batch[0]) for batch in rest) == 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_counts_samples_gets_the_number_of_trained_ones(workers):
    def loader():
        return DataLoader(Counted(), 2, num_workers=workers)

    whole = [batch[0] for batch in read(loader())]
    for skip in (1, 3):
        _, state = begin(loader(), skip)
        rest = read(loader(), skip=skip, loader_state=state)

        assert state["states"] == [{"sample_in_epoch": 2 * skip}]
        assert [batch[0] for batch in rest] == whole[skip:]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_the_saved_state_batches_are_read_again_with_a_warning(workers):
    def loader():
        return DataLoader(Stateful(), 2, num_workers=workers)

    whole = read(loader())
    with pytest.warns(ReplayedBatchesWarning, match="first 3 batches.*read_loader_state"):
        assert read(loader(), skip=3) == whole[3:]


def test_worker_init_fn_gets_the_dataset_and_the_number_of_the_worker():
    def shift(number):
        assert get_worker_info().id == number
        get_worker_info().dataset.epoch += 5 * number

    def numbers_of(skip, state=None):
        loader = DataLoader(Stateful(8), 2, num_workers=2, worker_init_fn=shift)
        return [batch[0] for batch in read(loader, skip=skip, loader_state=state)]

    loader = DataLoader(Stateful(8), 2, num_workers=2, worker_init_fn=shift)
    assert numbers_of(0) == [[1, 21], [16, 36], [41, 61], [56, 76]]
    assert numbers_of(3, begin(loader, 3)[1]) == [[56, 76]]


def test_pinned_batches_keep_their_state(monkeypatch):
    monkeypatch.setattr("composable.data.streams.pin_memory", lambda batch: ("pinned", batch))
    from composable.data.streams import Fetched

    pinned = Fetched([1], {"at": 3}, 1).pin_memory()
    assert (pinned.batch, pinned.state, pinned.worker) == (("pinned", [1]), {"at": 3}, 1)


@pytest.mark.parametrize(
    ("workers", "change", "message"),
    [
        (2, {}, "was read with num_workers=0, and this loader has num_workers=2"),
        (0, {"states": []}, "states in the loader's state must be a list of 1"),
        (0, {"turn": 1}, "must be non-negative integers"),
        (0, {"turn": "x"}, "must be non-negative integers"),
        (0, {"more": 1}, "has the entries"),
    ],
)
def test_rejects_the_state_of_another_loader(workers, change, message):
    _, state = begin(DataLoader(Stateful(), 2), 2)

    with pytest.raises(ValueError, match=message):
        read(
            DataLoader(Stateful(), 2, num_workers=workers), skip=2, loader_state={**state, **change}
        )


# --- in the Trainer ---


class Labelled(Stateful):
    def __init__(self, *, noisy=True):
        super().__init__()
        self.noisy = noisy

    def example(self, number):
        number, drawn = super().example(number)
        return torch.full((4,), number / 100) + drawn * self.noisy, torch.tensor(number % 3)


def build(workers=0, **options):
    loader = DataLoader(Labelled(), 2, num_workers=workers, prefetch_factor=4 if workers else None)
    return make_trainer(linear(), loader, check_effects=False, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [3, 10])
def test_a_resumed_run_is_exact_and_replays_nothing(workers, batch, tmp_path):
    resumes_exactly(lambda **options: build(workers, **options).fit(), tmp_path, batch)


class Ended(Exception):
    pass


@pytest.mark.parametrize(("workers", "continues"), [(0, False), (0, True), (2, True)])
def test_a_run_that_is_saved_before_its_first_batch_keeps_the_position(
    workers, continues, tmp_path
):
    expected = weights(build(workers, save_folder=tmp_path, save_interval="3ba").fit().model)
    (point,) = tmp_path.glob("*-ba3")
    ends = Raise(Ended(), Event.BEFORE_DATALOADER, 3)
    again = build(workers, load_path=point, callbacks=ends)
    with pytest.raises(Ended) if continues else nullcontext():
        again.fit() if continues else None
    saved = again.save_checkpoint(tmp_path / "again")

    assert same(weights(build(workers, load_path=saved).fit().model), expected)


class Persistent:
    """A loader like that of torchdata, whose worker keeps its copy of the data set."""

    def __init__(self, dataset):
        self.dataset, self._iterator, self._initial_iter_for_state_dict = dataset, None, False

    def __iter__(self):
        self._iterator = copy.deepcopy(self.dataset) if self._iterator is None else self._iterator
        return iter(list(self._iterator))

    def state_dict(self):
        if self._iterator is None:
            self._iterator, self._initial_iter_for_state_dict = copy.deepcopy(self.dataset), True
        return self._iterator.state_dict()

    def load_state_dict(self, state):
        self._iterator = None
        self.dataset.load_state_dict(state)


def test_persistent_workers_of_a_loader_with_a_state_know_each_epoch():
    loader = Persistent(Stateful())
    loader.state_dict()
    for epoch in range(3):
        assert read(loader, epoch=epoch) == read(Persistent(Stateful()), epoch=epoch)


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_another_number_of_workers_is_an_error(tmp_path):
    build(0, save_folder=tmp_path, save_interval="3ba", max_duration="3ba").fit()

    with pytest.raises(MismatchError, match=r"data/loader .* num_workers=0"):
        build(2, load_path=tmp_path, max_duration="6ba")


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_an_evaluation_may_not_move_the_position(kind):
    loader = DataLoader(Labelled(), 2)
    own = loader if kind == "loader" else DataLoader(loader.dataset, 3)

    with pytest.raises(ValueError, match="'eval' iterates over the stream of train_dataloader"):
        make_trainer(linear(), loader, eval_dataloader=own)
    make_trainer(linear(), loader, eval_dataloader=DataLoader(Labelled(), 2))


@pytest.mark.parametrize("make", [Stateful, Plain])
def test_a_second_fit_continues_within_an_epoch(make):
    class Examples(make):
        def example(self, number):
            number, drawn = super().example(number)
            return torch.full((4,), number / 100) + drawn, torch.tensor(number % 3)

    def build():
        return make_trainer(linear(), DataLoader(Examples(), 2), check_effects=False)

    expected = weights(build().fit(duration="9ba").model)
    twice = build()
    twice.fit(duration="3ba")
    with warnings.catch_warnings():
        if make is Stateful:
            warnings.simplefilter("error", ReplayedBatchesWarning)
        else:
            warnings.simplefilter("ignore", ReplayedBatchesWarning)
        state = twice.fit(duration="6ba")
    assert same(weights(state.model), expected)


# --- the libraries themselves, where they are installed ---


def rows(shards):
    """Yield the examples of some shards, for Hugging Face."""
    for shard in shards:
        for i in range(shard, 24, 4):
            yield {"x": [i / 9] * 4, "y": i % 3}


@pytest.mark.filterwarnings("ignore", "error::composable.data.ReplayedBatchesWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["torchdata", "datasets"])
def test_libraries_resume_exactly(kind, workers, tmp_path):
    pytest.importorskip(kind)

    def loader():
        options = {"num_workers": workers, "batch_size": 2, "persistent_workers": workers > 0}
        if kind == "torchdata":
            from torchdata.stateful_dataloader import StatefulDataLoader

            # Its workers draw other random numbers after a resume.
            return StatefulDataLoader(Labelled(noisy=not workers), **options)
        from datasets import IterableDataset

        dataset = IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
        return DataLoader(dataset.with_format("torch"), **options)

    def build(**options):
        keys = {} if kind == "torchdata" else {"input_key": "x", "target_key": "y"}
        return make_trainer(linear(), loader(), check_effects=False, **keys, **options)

    for batch in drawn([5, 11], 1):
        folder = tmp_path / str(batch)
        resumes_exactly(lambda **options: build(**options).fit(), folder, batch)
