"""Batches are fetched with random numbers of their step, and ahead of it.

tests/gpu/test_prefetch.py has what is copied.
"""

import random

import pytest
import torch
from torch.utils.data import DataLoader

from composable import Key
from composable.data import seeded_batches
from composable.data.fetching import Epoch, fetch_in_process, with_seeded_fetch
from composable.data.prefetch import Copies, Prefetcher, on_device
from composable.utils.reproducibility import preserve_rng, seed_context, seed_fetch
from tests.data.loaders import DRAWS, Noisy
from tests.support.runs import make_trainer

SEED = 17


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("first", [0, 4, 9, 100])
@pytest.mark.parametrize("skip", [0, 3])
def test_fetching_in_process_matches_a_seeded_loader(draw, first, skip):
    def batches(fetch):
        data = Noisy(24, first=first, draw=draw)
        with preserve_rng():
            made = list(fetch(DataLoader(data, batch_size=4), Epoch(Key(SEED), 0, 10, skip)))
        assert data.loaded == list(range(4 * skip, 24))  # each of them once
        return [part for batch in made for part in batch]

    made, expected = batches(fetch_in_process), batches(with_seeded_fetch)

    assert len(made) == 2 * (6 - skip)
    assert all(map(torch.equal, made, expected))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_of_the_training_step_do_not_change_the_batches(draw):
    def batches(between):
        with preserve_rng():
            loader = DataLoader(Noisy(24, first=9), batch_size=4)
            return [(str(x), between()) for x in seeded_batches(loader, SEED, epoch=0)]

    quiet = batches(lambda: None)
    assert [x for x, _ in batches(draw)] == [x for x, _ in quiet]


def test_a_batch_is_drawn_from_the_seed_of_its_step():
    with seed_context(0):
        loader = DataLoader(Noisy(3, draw=DRAWS["torch"]), batch_size=1)
        drawn = [x.item() for _, x in seeded_batches(loader, SEED, epoch=1, first_step=3)]
        for step, number in enumerate(drawn[1:], start=4):  # the first follows the shuffling
            seed_fetch(SEED, step)
            assert torch.rand(()).item() == number


def test_a_list_of_batches_seeds_the_generators_for_the_epoch():
    def drawn(before: int) -> float:
        random.seed(before)
        next(iter(seeded_batches([1, 2], SEED, epoch=3)))
        return random.random()

    with preserve_rng():
        assert drawn(1) == drawn(2)


# --- ahead of the steps ---


def test_an_error_is_raised_where_its_batch_would_be():
    def failing():
        yield 1
        raise LookupError("example 7 is missing")

    fetched = Prefetcher(failing(), Copies())
    assert next(fetched) == 1
    fetched.fetch()
    with pytest.raises(LookupError, match="example 7"):
        next(fetched)
    assert list(fetched) == []


def test_an_interrupt_is_raised_at_once():
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        Prefetcher(interrupted(), Copies()).fetch()


def test_other_devices_get_each_batch_when_it_is_due():
    batch = {"x": torch.ones(2), "name": "a"}

    (moved,) = on_device(iter([batch]), torch.device("meta"))
    assert (moved["x"].device.type, moved["name"]) == ("meta", "a")
    (same,) = on_device(iter([batch]), torch.device("cpu"))
    assert same is batch


def test_nothing_is_read_ahead_on_the_cpu():
    data = make_trainer()._run.data

    assert data.copies is None
    assert not isinstance(data.batches(make_trainer().state), Prefetcher)
