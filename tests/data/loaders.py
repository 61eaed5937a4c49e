"""Loaders of all kinds, whose examples draw from the global generators."""

import random

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from composable.data import GlobalBatchSampler, seeded_batches
from composable.utils.reproducibility import seed_context

DRAWS = {
    "python": random.random,
    "numpy": np.random.random_sample,
    "torch": lambda: torch.rand(()).item(),
    "seeds": lambda: (random.seed(3), random.random())[1],
}


def noise():
    """Draw from every global generator."""
    return sum(DRAWS[name]() for name in ("python", "numpy", "torch"))


class Noisy(Dataset):
    """Examples with noise from all global generators, which records what is loaded here."""

    def __init__(self, count=11, *, first=0, draw=noise):
        self.count, self.first, self.draw, self.loaded = count, first, draw, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.loaded.append(i)
        return i, self.draw() if i >= self.first else 0.0


class NoisyBatches(Noisy):
    """The same, with a batch at an index."""

    def __getitems__(self, indices):
        drawn = self.draw()
        return [(i, drawn) for i in indices]


class Stream(IterableDataset):
    """Examples without an index, which draw from one of them on."""

    def __init__(self, first=0):
        self.first = first

    def __iter__(self):
        return ((i, noise() if i >= self.first else 0.0) for i in range(8))


class Stateful:
    """A loader with a state, like the StatefulDataLoader of torchdata."""

    def __init__(self, first=0):
        self.first, self.at, self.loaded, self.begin = first, 0, [], 0

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        while self.at < 5:
            self.at += 1
            self.loaded.append(self.at)
            yield self.at, noise() if self.at > self.first else 0.0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


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

    label = "class"

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.label = "own"


class Twice(DataLoader):
    """A loader that yields every batch twice."""

    def __iter__(self):
        return (batch for batch in super().__iter__() for _ in range(2))


def batch_sampler():
    return BatchSampler(Lazy(), 4, drop_last=False)


LOADERS = {
    "shuffled": lambda **more: DataLoader(Noisy(), 3, shuffle=True, **more),
    "in order": lambda **more: DataLoader(Noisy(), 3, **more),
    "drops the last": lambda **more: DataLoader(Noisy(), 3, shuffle=True, drop_last=True, **more),
    "no batches": lambda **more: DataLoader(Noisy(), batch_size=None, shuffle=True, **more),
    "lazy sampler": lambda **more: DataLoader(Noisy(), 3, sampler=Lazy(), **more),
    "batch sampler": lambda **more: DataLoader(Noisy(), batch_sampler=batch_sampler(), **more),
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
        return [numbers(batch) for batch in batches]


def numbers(batch):
    if isinstance(batch, (list, tuple)):
        return [numbers(part) for part in batch]
    return torch.as_tensor(batch).tolist()
