"""An epoch can start at any batch, without loading the batches before it."""

import os
import random

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, get_worker_info

from composable import Key
from composable.data import (
    MovedGeneratorWarning,
    ReplayedBatchesWarning,
    get_generator_states,
    read_loader_state,
    seeded_batches,
)
from composable.utils.reproducibility import seed_context, seed_epoch
from tests.data.loaders import LOADERS, Noisy, Stateful, Stream, Twice, read
from tests.support.campaign import each_pair
from tests.support.models import linear, same, weights
from tests.support.runs import make_trainer


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_starts_at_any_batch_with_and_without_workers(make):
    loader = make()
    before, whole = dict(vars(loader)), read(loader)

    assert len(whole) == len(loader)
    for skip in (1, 2, len(loader), len(loader) + 1):
        assert read(loader, skip=skip) == whole[skip:]
    assert vars(loader) == before

    workers = make(num_workers=2, persistent_workers=True)
    assert read(workers) == whole
    assert read(workers, skip=2) == whole[2:]


def test_the_order_depends_on_the_seed_and_the_epoch_alone():
    loader = LOADERS["shuffled"]()
    first = read(loader)

    assert read(LOADERS["shuffled"](), seed=Key(17)) == first
    assert read(loader, epoch=2) != first != read(loader, seed=18)


def test_a_list_starts_at_the_batch():
    batches = [torch.tensor(i) for i in range(4)]

    assert list(seeded_batches(batches, 17, epoch=0, skip=3)) == batches[3:]
    assert list(seeded_batches(tuple(batches), 17, epoch=0, skip=5)) == []


def test_an_interrupted_epoch_of_persistent_workers_leaves_no_trace():
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


def test_worker_init_fn_gets_the_dataset():
    loader = DataLoader(OpensInWorker(4), 2, num_workers=2, worker_init_fn=open_in_worker)

    assert [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)] == [[40] * 2, [41] * 2]


def fail(*_):
    raise LookupError("example 0 is missing")


def test_an_error_of_the_dataset_is_raised_unchanged():
    with pytest.raises(LookupError, match="example 0 is missing"):
        read(DataLoader(Noisy(draw=fail)))


# --- loaders that cannot start in mid-epoch ---


@pytest.mark.parametrize(
    "make",
    [
        *(lambda first=first: DataLoader(Stream(first), 2) for first in (0, 3, 100)),
        lambda: DataLoader(Stream(), 2, num_workers=1),
        lambda: Stream(),
        lambda: Twice(Noisy(), 3, shuffle=True),
        lambda: Stateful(),
    ],
)
def test_skipped_batches_are_replayed_with_a_warning(make):
    whole, remedy = read(make()), "read_loader_state" if type(make()) is Stateful else "DataL"

    with pytest.warns(ReplayedBatchesWarning, match=f"the first 2 batches of the epoch .*{remedy}"):
        assert read(make(), skip=2) == whole[2:]


@pytest.mark.filterwarnings("error")
def test_an_epoch_from_its_start_does_not_warn():
    read(Stream()), read(DataLoader(Noisy(), 3, shuffle=True, generator=torch.Generator()))


@pytest.mark.parametrize("of_the_sampler", [False, True])
def test_a_generator_of_the_loader_warns_or_is_set_to_its_state(of_the_sampler):
    own = torch.Generator().manual_seed(0)
    how = {"sampler": RandomSampler(range(11), generator=own)} if of_the_sampler else {}
    loader = DataLoader(Noisy(), 3, **how or {"shuffle": True, "generator": own})
    read(loader)  # an epoch before
    began = get_generator_states(loader)
    whole = read(loader)

    assert read(loader, skip=2, generators=began) == whole[2:]
    assert read(loader, generators=began) == whole != read(loader)
    with pytest.warns(MovedGeneratorWarning, match="Build the loader without generator="):
        read(loader, skip=1)


# --- loaders with a state ---


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("first", [0, 3])
def test_a_loader_with_a_state_starts_from_it(first):
    whole = read(Stateful(first))
    loader, interrupted = Stateful(first), Stateful(first)
    batches = seeded_batches(interrupted, 17, epoch=1, first_step=4)
    next(batches), next(batches)
    state = read_loader_state(interrupted)

    assert state == {"at": 2}
    assert read(loader, skip=2, loader_state=state) == whole[2:]
    assert loader.loaded == [3, 4, 5]
    # A state of the end of an epoch is not loaded into the next one.
    assert len(read(loader, epoch=2)) == len(read(Stateful(), loader_state={"at": 5})) == 5
    assert read_loader_state(DataLoader(Noisy())) is None


class SelfMade:
    """A sampler that creates a generator if it is given none, like the one of torchdata."""

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
def test_a_generator_that_the_sampler_creates_is_seeded():
    def order(generator=None, **options):
        loader = WithSelfMade(generator)
        return list(seeded_batches(loader, **{"seed": 17, "epoch": 0, **options}))

    assert order(skip=3) == order()[3:]
    assert order(epoch=1) != order() != order(seed=18)
    given, plain = (torch.Generator().manual_seed(4) for _ in range(2))
    assert order(given) == torch.randperm(9, generator=plain).tolist()


# --- persistent workers, and a generator of the loader ---


def shuffled(*, persistent=True, workers=1):
    return DataLoader(
        range(12),
        batch_size=3,
        shuffle=True,
        generator=torch.Generator().manual_seed(5),
        num_workers=workers,
        persistent_workers=persistent,
    )


def epoch_of(loader, epoch, **options):
    return [batch.tolist() for batch in seeded_batches(loader, 17, epoch=epoch, **options)]


@pytest.mark.parametrize(("epoch", "skip", "fresh"), each_pair([0, 1, 2], [0, 2], [True, False]))
def test_order_is_the_same_after_a_resume(epoch, skip, fresh):
    loader = shuffled()
    for earlier in range(epoch):
        epoch_of(loader, earlier)
    began = get_generator_states(loader)
    whole = epoch_of(loader, epoch)
    following = epoch_of(loader, epoch + 1)

    again = shuffled() if fresh else loader

    assert epoch_of(again, epoch, skip=skip, generators=began) == whole[skip:]
    assert epoch_of(again, epoch + 1) == following


def test_order_is_that_of_the_loader_itself():
    plain, loader = shuffled(), shuffled()

    for epoch in range(3):
        assert epoch_of(loader, epoch) == [batch.tolist() for batch in plain]


@pytest.mark.parametrize("options", [{}, {"generator": True}])
def test_an_epoch_within_another_one_does_not_change_it(options):
    def make():
        own = {"generator": torch.Generator().manual_seed(0)} if options else {}
        return DataLoader(range(12), 2, num_workers=1, persistent_workers=True, **own)

    loader, found = make(), []
    expected = [batch.tolist() for batch in seeded_batches(make(), 17, epoch=1)]
    for batch in seeded_batches(loader, 17, epoch=1):
        found.append(batch.tolist())
        inner = list(seeded_batches(loader, 17, epoch=0))  # an evaluation, say

    assert found == expected
    assert len(inner) == len(expected)


# --- in the Trainer, and as the DataLoader does it ---


class Labelled(Noisy):
    def __getitem__(self, i):
        self.loaded.append(i)
        return torch.rand(4), i % 3


def test_fitting_in_parts_loads_no_example_twice():
    def run(parts):
        loader = DataLoader(Labelled(), 3, shuffle=True)
        trainer = make_trainer(linear(), train_dataloader=loader, max_duration=None)
        for part in parts:
            trainer.fit(duration=part)
        return weights(trainer.state.model), loader.dataset.loaded

    once, split = run(["8ba"]), run(["3ba", "2ba", "3ba"])

    assert same(once[0], split[0])
    assert once[1] == split[1]


@pytest.mark.parametrize("name", ["shuffled", "eager batch sampler"])
def test_the_order_is_that_of_a_plain_loop_after_seed_epoch(name):
    with seed_context(0):
        seed_epoch(17, 1)
        plain = [batch[0].tolist() for batch in LOADERS[name]()]

    assert [batch[0] for batch in read(LOADERS[name](), epoch=1)] == plain


def test_a_distributed_sampler_gets_the_epoch():
    sampler = DistributedSampler(range(12), num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(range(12), batch_size=12, sampler=sampler)

    assert read(loader, epoch=0) != read(loader, epoch=1)
    assert sampler.epoch == 1


def test_uses_getitems_of_the_dataset():
    batches = read(LOADERS["batches at once"]())

    assert [len(set(drawn)) for _, drawn in batches] == [1, 1, 1, 1]


class InProcess(Noisy):
    def __getitem__(self, i):
        return os.getpid()


@pytest.mark.parametrize(("options", "count"), [({"persistent_workers": True}, 1), ({}, 2)])
def test_only_persistent_workers_survive_an_epoch(options, count):
    loader = DataLoader(InProcess(2), 1, num_workers=1, **options)

    assert len({p for epoch in range(2) for (p,) in map(tuple, read(loader, epoch=epoch))}) == count
