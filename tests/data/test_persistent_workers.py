"""The order of a loader with persistent workers and a generator of its own."""

import pytest
import torch
from torch.utils.data import DataLoader

from composable.data import get_generator_states, seeded_batches
from tests.support.campaign import each_pair


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
