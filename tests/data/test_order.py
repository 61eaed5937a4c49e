"""The order of batches depends on the seed and the epoch alone."""

import random

import torch
from torch.utils.data import DataLoader, DistributedSampler

from composable import Event, Key
from composable.data import seeded_batches
from composable.utils.reproducibility import seed_context, seed_fetch
from tests.support.tiny import Watch, examples, linear, make_trainer


def shuffled():
    return DataLoader(range(12), batch_size=3, shuffle=True)


def order(loader, seed, **options):
    return [batch.tolist() for batch in seeded_batches(loader, seed, **options)]


def test_an_order_is_a_function_of_seed_and_epoch():
    loader = shuffled()
    first = order(loader, 17, epoch=0)

    torch.rand(100), random.random()

    assert order(loader, 17, epoch=0) == first
    assert order(shuffled(), Key(17), epoch=0) == first
    assert order(loader, 17, epoch=1) != first
    assert order(loader, 18, epoch=0) != first
    assert sorted(i for batch in first for i in batch) == list(range(12))


def test_what_a_dataset_draws_depends_on_the_step_alone():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.rand(())

    def noise(first_step, consume):
        drawn = []
        for batch in seeded_batches(Noisy(), 17, epoch=1, first_step=first_step):
            drawn.append(batch.item())
            torch.rand(consume)  # the model's dropout, say
            if len(drawn) == 4:
                break
        return drawn

    assert noise(4, consume=1) == noise(4, consume=7)
    assert noise(4, consume=1)[1:] != noise(0, consume=1)[1:]


def test_a_distributed_sampler_is_told_the_epoch():
    sampler = DistributedSampler(range(12), num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(range(12), batch_size=12, sampler=sampler)

    assert order(loader, 17, epoch=0) != order(loader, 17, epoch=1)
    assert sampler.epoch == 1


def test_the_trainer_reads_its_loader_in_this_order():
    inputs, _ = examples(12)
    loader = DataLoader(
        [(x, torch.tensor(i % 3)) for i, x in enumerate(inputs)], batch_size=3, shuffle=True
    )
    watch = Watch(Event.AFTER_DATALOADER, read=lambda s: s.inputs)
    make_trainer(linear(), train_dataloader=loader, callbacks=[watch]).fit()

    expected = [
        batch[0]
        for epoch in range(2)
        for batch in seeded_batches(loader, 17, epoch=epoch, first_step=4 * epoch)
    ]
    assert len(watch.values) == len(expected) == 8
    assert all(torch.equal(a, b) for a, b in zip(watch.values, expected, strict=True))


def test_workers_that_persist_change_no_order():
    data = torch.arange(12)
    persistent = DataLoader(data, 3, shuffle=True, num_workers=1, persistent_workers=True)
    fresh = DataLoader(data, 3, shuffle=True, num_workers=1)

    for epoch in range(3):
        assert order(persistent, 17, epoch=epoch) == order(fresh, 17, epoch=epoch)


def test_the_batch_of_a_step_is_drawn_from_the_seed_of_that_step():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.rand(())

    with seed_context(0):
        loader = DataLoader(Noisy(), batch_size=1)
        drawn = [batch.item() for batch in seeded_batches(loader, 17, epoch=1, first_step=3)]
        for step, number in enumerate(drawn[1:], start=4):  # the first follows the shuffling
            seed_fetch(17, step)
            assert torch.rand(()).item() == number
