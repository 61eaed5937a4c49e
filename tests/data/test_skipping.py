"""An epoch can be gone through from any batch on, without loading what lies before it."""

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

from composable.data import (
    GlobalBatchSampler,
    MovedGeneratorWarning,
    ReplayedBatchesWarning,
    get_generator_states,
    read_loader_state,
    seeded_batches,
)
from composable.utils.reproducibility import seed_context, seed_epoch
from tests.support.tiny import linear, make_trainer, same, weights


class Noisy(Dataset):
    """Examples with noise from all global generators, that writes down what is loaded here."""

    def __init__(self, count=11):
        self.count, self.loaded = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.loaded.append(i)
        return i, torch.rand(()), random.random(), np.random.rand()  # noqa: NPY002


class NoisyBatches(Noisy):
    """The same, with a batch at an index."""

    def __getitems__(self, indices):
        noise = float(torch.rand(()))
        return [(i, noise, 0.0, 0.0) for i in indices]


class Lazy:
    """A sampler that draws each index lazily."""

    def __len__(self):
        return 11

    def __iter__(self):
        return (random.randrange(11) for _ in range(11))


class Eager:
    """A batch sampler that draws the whole order when it begins."""

    def __len__(self):
        return 4

    def __iter__(self):
        return iter([part.tolist() for part in torch.randperm(11).split(3)])


class Own(DataLoader):
    """A loader with attributes of its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.label = "own"


LOADERS = {
    "shuffled": lambda **more: DataLoader(Noisy(), 3, shuffle=True, **more),
    "in order": lambda **more: DataLoader(Noisy(), 3, **more),
    "drops the last": lambda **more: DataLoader(Noisy(), 3, shuffle=True, drop_last=True, **more),
    "no batches": lambda **more: DataLoader(Noisy(), batch_size=None, shuffle=True, **more),
    "lazy sampler": lambda **more: DataLoader(Noisy(), 3, sampler=Lazy(), **more),
    "batch sampler": lambda **more: DataLoader(
        Noisy(), batch_sampler=BatchSampler(Lazy(), 4, drop_last=False), **more
    ),
    "eager batch sampler": lambda **more: DataLoader(Noisy(), batch_sampler=Eager(), **more),
    "global batches": lambda **more: DataLoader(
        Noisy(), batch_sampler=GlobalBatchSampler(11, batch_size=3, seed=5), **more
    ),
    "batches at once": lambda **more: DataLoader(NoisyBatches(), 3, shuffle=True, **more),
    "a subclass": lambda **more: Own(Noisy(), 3, shuffle=True, **more),
}


def read(loader, *, skip=0, epoch=1, seed=17, **more):
    """Return the batches as lists of numbers."""
    with seed_context(3):
        batches = seeded_batches(loader, seed, epoch=epoch, first_step=4 * epoch, skip=skip, **more)
        return [[torch.as_tensor(part).tolist() for part in batch] for batch in batches]


@pytest.mark.parametrize("name", list(LOADERS))
def test_a_loader_goes_on_with_the_tail_of_the_epoch(name):
    loader = LOADERS[name]()
    whole = read(loader)

    assert len(whole) == len(loader)
    for skip in (1, 2, len(loader), len(loader) + 1):
        assert read(LOADERS[name](), skip=skip) == whole[skip:]


@pytest.mark.parametrize("name", list(LOADERS))
def test_workers_change_neither_order_nor_noise(name):
    whole = read(LOADERS[name]())
    loader = LOADERS[name](num_workers=2, persistent_workers=True)

    assert read(loader) == whole
    assert read(loader, skip=2) == whole[2:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("persistent", [False, True])
def test_any_number_of_workers_gives_the_epochs_of_this_process(persistent):
    loader = LOADERS["shuffled"](num_workers=3, persistent_workers=persistent)

    for epoch in range(3):
        assert read(loader, epoch=epoch) == read(LOADERS["shuffled"](), epoch=epoch)
    assert read(loader, epoch=1, seed=18) == read(LOADERS["shuffled"](), epoch=1, seed=18)


def test_nothing_is_loaded_to_be_thrown_away():
    loader = LOADERS["shuffled"]()
    whole = [i for batch in read(loader) for i in batch[0]]
    loader.dataset.loaded.clear()

    read(loader, skip=2)

    assert loader.dataset.loaded == whole[6:]


def test_a_list_of_batches_is_read_from_the_batch_on():
    batches = [torch.tensor(i) for i in range(4)]

    assert list(seeded_batches(batches, 17, epoch=0, skip=3)) == batches[3:]
    assert list(seeded_batches(tuple(batches), 17, epoch=0, skip=5)) == []


def test_the_loader_stays_as_it_was():
    loader = LOADERS["a subclass"]()
    before = dict(vars(loader))

    read(loader), read(loader, skip=2)

    assert vars(loader) == before


def test_an_interrupted_epoch_of_workers_that_persist_leaves_nothing_behind():
    loader = LOADERS["shuffled"](num_workers=1, persistent_workers=True)
    batches = seeded_batches(loader, 17, epoch=0)
    next(batches)
    batches.close()

    assert read(loader, epoch=1) == read(LOADERS["shuffled"](), epoch=1)
    assert read(loader, epoch=0, skip=1) == read(LOADERS["shuffled"](), epoch=0)[1:]


class OpensInWorker(Noisy):
    file = None

    def __getitem__(self, i):
        return self.file


def open_in_worker(worker_id):
    dataset = get_worker_info().dataset
    assert type(dataset) is OpensInWorker
    dataset.file = 40 + worker_id


def test_a_function_that_starts_workers_sees_the_data_set():
    loader = DataLoader(OpensInWorker(4), 2, num_workers=2, worker_init_fn=open_in_worker)

    assert [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)] == [[40] * 2, [41] * 2]


def test_an_error_of_the_data_set_is_raised_as_it_is():
    class Broken(Noisy):
        def __getitem__(self, i):
            raise LookupError(f"example {i} is missing")

    with pytest.raises(LookupError, match="example 0 is missing"):
        read(DataLoader(Broken()))


# --- loaders that can't begin in mid-epoch ---


class Stream(IterableDataset):
    def __init__(self):
        self.read = 0

    def __iter__(self):
        for i in range(6):
            self.read += 1
            yield i, torch.rand(()), random.random(), 0.0


class GoesItsOwnWay(DataLoader):
    """Gives every batch twice."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch
            yield batch


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream(), 2),
        lambda: DataLoader(Stream(), 2, num_workers=1),
        lambda: Stream(),
        lambda: GoesItsOwnWay(Noisy(), 3, shuffle=True),
    ],
)
def test_what_has_no_index_is_replayed_and_says_so(make):
    whole = read(make())

    with pytest.warns(ReplayedBatchesWarning, match=r"the first 2 batches of the epoch .*DataL"):
        assert read(make(), skip=2) == whole[2:]


@pytest.mark.filterwarnings("error")
def test_an_epoch_that_begins_at_its_begin_warns_of_nothing():
    read(Stream()), read(DataLoader(Noisy(), 3, shuffle=True, generator=torch.Generator()))


@pytest.mark.parametrize("sampler", [None, "random"])
def test_a_generator_that_has_moved_on_is_reported(sampler):
    own = torch.Generator().manual_seed(0)
    if sampler:
        chosen = torch.utils.data.RandomSampler(range(11), generator=own)
        loader = DataLoader(Noisy(), 3, sampler=chosen)
    else:
        loader = DataLoader(Noisy(), 3, shuffle=True, generator=own)

    with pytest.warns(MovedGeneratorWarning, match="Build the loader without generator="):
        read(loader, skip=1)


def test_a_generator_is_set_to_what_it_was_when_the_epoch_began():
    own = torch.Generator().manual_seed(0)
    loader = DataLoader(Noisy(), 3, shuffle=True, generator=own)
    read(loader)  # an epoch before
    began = get_generator_states(loader)
    whole = read(loader)

    assert read(loader, skip=2, generators=began) == whole[2:]
    assert read(loader, generators=began) == whole != read(loader)


def test_generators_of_another_loader_are_refused():
    with pytest.raises(ValueError, match=r"generators has 1 states, but the loader has 0"):
        read(DataLoader(Noisy(), 3), generators=[torch.Generator().get_state()])


# --- loaders with a state ---


class Stateful:
    """A loader that says where it stands, as torchdata's StatefulDataLoader does."""

    def __init__(self):
        self.at, self.loaded, self.begin = 0, [], 0

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        while self.at < 5:
            self.at += 1
            self.loaded.append(self.at)
            yield self.at, float(torch.rand(()))

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


@pytest.mark.filterwarnings("error")
def test_a_loader_with_a_state_goes_on_from_it():
    whole = list(seeded_batches(Stateful(), 17, epoch=0, first_step=5))
    loader, interrupted = Stateful(), Stateful()
    first = seeded_batches(interrupted, 17, epoch=0, first_step=5)
    next(first), next(first)
    state = read_loader_state(interrupted)

    rest = seeded_batches(loader, 17, epoch=0, first_step=5, skip=2, loader_state=state)

    assert state == {"at": 2}
    assert list(rest) == whole[2:]
    assert loader.loaded == [3, 4, 5]
    assert len(list(seeded_batches(loader, 17, epoch=1, first_step=10))) == 5


def test_without_its_state_such_a_loader_is_replayed():
    whole = list(seeded_batches(Stateful(), 17, epoch=0))

    with pytest.warns(ReplayedBatchesWarning, match="read_loader_state"):
        assert list(seeded_batches(Stateful(), 17, epoch=0, skip=2)) == whole[2:]


def test_a_state_of_the_end_of_an_epoch_is_not_loaded_into_the_next():
    loader = Stateful()

    batches = seeded_batches(loader, 17, epoch=1, first_step=5, loader_state={"at": 5})

    assert len(list(batches)) == 5


class SelfMade:
    """A sampler that makes itself a generator where it was given none, as torchdata's does."""

    __module__ = "torchdata.stateful_dataloader.sampler"

    def __init__(self, generator=None):
        self.generator = generator or torch.Generator().manual_seed(random.randrange(2**32))


class WithSelfMade(Stateful):
    def __init__(self, generator=None):
        super().__init__()
        self.generator, self.sampler = generator, SelfMade(generator)

    def __iter__(self):
        yield from torch.randperm(9, generator=self.sampler.generator).tolist()


@pytest.mark.filterwarnings("error", "ignore::composable.data.ReplayedBatchesWarning")
def test_an_order_that_a_sampler_would_draw_for_itself_is_that_of_the_seed():
    def order(**options):
        return list(seeded_batches(WithSelfMade(), **{"seed": 17, "epoch": 0, **options}))

    assert order(skip=3) == order()[3:]
    assert order(epoch=1) != order() != order(seed=18)


def test_such_a_sampler_that_was_given_a_generator_keeps_its_order():
    loader = WithSelfMade(torch.Generator().manual_seed(4))

    order = list(seeded_batches(loader, 17, epoch=0))

    assert order == torch.randperm(9, generator=torch.Generator().manual_seed(4)).tolist()


def test_a_state_for_a_loader_that_takes_none_is_refused():
    with pytest.raises(ValueError, match="requires a loader with load_state_dict, and list has"):
        seeded_batches([1, 2], 17, epoch=0, skip=1, loader_state={})


@pytest.mark.parametrize("skip", [-1, 1.0, True, "2"])
def test_a_skip_that_is_no_number_of_batches_is_refused(skip):
    with pytest.raises(ValueError, match=f"skip={skip!r} must be a non-negative integer"):
        seeded_batches([1, 2], 17, epoch=0, skip=skip)


def test_a_loader_without_a_state_has_none():
    assert read_loader_state(DataLoader(Noisy())) is None


# --- in the Trainer ---


class Labelled(Noisy):
    def __getitem__(self, i):
        self.loaded.append(i)
        return torch.rand(4), i % 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_that_goes_on_in_mid_epoch_loads_no_example_twice(workers):
    def run(parts):
        loader = DataLoader(Labelled(), 3, shuffle=True, num_workers=workers)
        trainer = make_trainer(linear(), train_dataloader=loader, max_duration=None)
        for part in parts:
            trainer.fit(duration=part)
        return weights(trainer.state.model), loader.dataset.loaded

    once, split = run(["8ba"]), run(["3ba", "2ba", "3ba"])

    assert same(once[0], split[0])
    assert once[1] == split[1]


# --- as torch's DataLoader does it ---


@pytest.mark.parametrize("name", ["shuffled", "eager batch sampler"])
def test_the_order_is_that_of_a_plain_loop_after_seeding_the_epoch(name):
    with seed_context(0):
        seed_epoch(17, 1)
        plain = [batch[0].tolist() for batch in LOADERS[name]()]

    assert [batch[0] for batch in read(LOADERS[name](), epoch=1)] == plain


def test_a_data_set_that_gives_batches_at_once_is_asked_for_them_at_once():
    noise = [set(batch[1]) for batch in read(LOADERS["batches at once"]())]

    assert [len(of_one_batch) for of_one_batch in noise] == [1, 1, 1, 1]


class InProcess(Noisy):
    def __getitem__(self, i):
        return os.getpid()


def test_workers_persist_over_epochs_where_they_are_told_to():
    def workers(**options):
        loader = DataLoader(InProcess(2), 1, num_workers=1, **options)
        return {
            batch.item() for epoch in range(2) for batch in seeded_batches(loader, 17, epoch=epoch)
        }

    assert len(workers(persistent_workers=True)) == 1
    assert len(workers()) == 2
