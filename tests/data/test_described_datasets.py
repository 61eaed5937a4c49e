"""What the processes of a run compare of their data."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composable.data.sharding import describe_dataset
from composable.utils.reproducibility import get_rng_state


class Drawing(Dataset):
    """Draws noise from a generator."""

    def __init__(self, draw, offset=0.0, **own):
        self.draw, self.offset = draw, offset
        self.__dict__ |= own

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return float(self.draw()) + index + self.offset


GLOBAL = {"torch": lambda: torch.rand(()), "python": random.random, "numpy": np.random.rand}


def plain(state):
    return repr({name: one.tolist() if name == "torch" else one for name, one in state.items()})


@pytest.mark.parametrize("name", GLOBAL)
def test_draws_are_the_same_and_change_no_random_state(name):
    before = plain(get_rng_state())
    first, other = (describe_dataset(DataLoader(Drawing(GLOBAL[name], x))) for x in (0.0, 1.0))
    assert plain(get_rng_state()) == before
    GLOBAL[name]()
    assert describe_dataset(DataLoader(Drawing(GLOBAL[name]))) == first != other


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_dataset_with_a_generator_of_its_own_is_not_read(kind, nested):
    generator = kind(0)
    expected = kind(0).random()
    own = [Drawing(None, own=generator)] if nested else generator  # as transforms have it
    described = describe_dataset(DataLoader(Drawing(generator.random, own=own)))
    assert described == {"examples": 9}
    assert generator.random() == expected


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


class Broken(Drawing):
    def __getitem__(self, index):
        raise OSError("the file is gone")


@pytest.mark.parametrize(
    ("loader", "described"),
    [
        (DataLoader(Stream()), {}),
        ([torch.ones(2)], {}),
        (DataLoader(Broken(random.random)), {"examples": 9}),
    ],
)
def test_other_data_has_fewer_entries(loader, described):
    assert describe_dataset(loader) == described
