"""Random numbers drawn while a batch is fetched depend only on its step."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composable import Trainer
from composable.data import seeded_batches
from composable.data.fetching import SeededIndex, fetch_in_process, with_seeded_fetch
from composable.utils.reproducibility import preserve_rng

SEED = 17


class DrawsFrom(Dataset):
    """Draws from a generator, from an example on; counts its fetches."""

    def __init__(self, draw, first: int) -> None:
        self.draw, self.first, self.fetched = draw, first, []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched.append(index)
        drawn = self.draw() if index >= self.first else 0.0
        return torch.tensor([index, drawn], dtype=torch.float64)


DRAWS = {
    "python": random.random,
    "numpy": numpy.random.random_sample,
    "torch": lambda: torch.rand(()).item(),
    "seeds": lambda: (random.seed(3), random.random())[1],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("first", [0, 4, 9, 100])
@pytest.mark.parametrize("skip", [0, 3])
def test_batches_are_those_of_a_loader_that_is_seeded_for_each(draw, first, skip):
    def batches(fetch):
        loader = DataLoader(DrawsFrom(draw, first), batch_size=4)
        with preserve_rng():
            return list(fetch(loader, SeededIndex(SEED, 0, 10), skip))

    expected = batches(with_seeded_fetch)
    made = batches(fetch_in_process)

    assert len(made) == 6 - skip
    assert all(map(torch.equal, made, expected))


def test_every_example_is_fetched_once():
    data = DrawsFrom(random.random, 9)
    with preserve_rng():
        list(seeded_batches(DataLoader(data, batch_size=4), SEED, epoch=0))
    assert data.fetched == list(range(24))


def test_draws_of_the_training_step_do_not_change_the_batches():
    def batches(between):
        loader = DataLoader(DrawsFrom(random.random, 9), batch_size=4)
        with preserve_rng():
            made = []
            for batch in seeded_batches(loader, SEED, epoch=0):
                made.append(batch)
                between()
            return made

    quiet = batches(lambda: None)
    assert all(map(torch.equal, batches(random.random), quiet))
    assert all(map(torch.equal, batches(numpy.random.random_sample), quiet))


class Stream(IterableDataset):
    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self):
        for i in range(8):
            yield torch.tensor([i, random.random() if i >= self.first else 0.0])


@pytest.mark.parametrize("first", [0, 3, 100])
@pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")
def test_a_stream_that_draws_late_is_the_same_when_it_is_resumed(first):
    loader = DataLoader(Stream(first), batch_size=2)
    with preserve_rng():
        whole = list(seeded_batches(loader, SEED, epoch=1, first_step=4))
        rest = list(seeded_batches(loader, SEED, epoch=1, first_step=4, skip=2))
    assert len(rest) == 2
    assert all(map(torch.equal, rest, whole[2:]))


class StatefulStream:
    """A stream that can resume anywhere, and draws from its third batch on."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def __iter__(self):
        start, self.position = self.position, 0
        for i in range(start, 6):
            self.position = i + 1
            yield torch.tensor([i, random.random() if i >= 3 else 0.0])


def test_a_stateful_loader_that_draws_late_is_the_same_when_it_is_resumed():
    with preserve_rng():
        whole = list(seeded_batches(StatefulStream(), SEED, epoch=0))
        state = {"position": 2}
        rest = list(seeded_batches(StatefulStream(), SEED, epoch=0, skip=2, loader_state=state))
    assert len(rest) == 4
    assert all(map(torch.equal, rest, whole[2:]))


def test_a_list_of_batches_seeds_the_generators_for_the_epoch():
    def drawn(before: int) -> float:
        random.seed(before)
        next(iter(seeded_batches([1, 2], SEED, epoch=3)))
        return random.random()

    with preserve_rng():
        assert drawn(1) == drawn(2)


class Noisy(torch.nn.Linear):
    """Draws from the generators of Python and NumPy in its forward pass, as SpecAugment does."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) * (DRAWS["python"]() + DRAWS["numpy"]())


def make_trainer(source, folder, **options) -> Trainer:
    torch.manual_seed(0)
    examples = [(torch.full((4,), i / 24), torch.tensor(i % 3)) for i in range(24)]
    model = Noisy(4, 3)
    return Trainer(
        model,
        train_dataloader=DataLoader(source(examples), batch_size=4),
        loss_fn=torch.nn.functional.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="2ep",
        progress_bar=False,
        seed=SEED,
        save_folder=folder,
        save_interval="1ba",
        **options,
    )


class Iterated(IterableDataset):
    def __init__(self, examples) -> None:
        self.examples = examples

    def __iter__(self):
        return iter(self.examples)


@pytest.mark.parametrize("source", [list, Iterated])
@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")
def test_a_model_that_draws_from_python_and_numpy_resumes_bit_for_bit(source, batch, tmp_path):
    with preserve_rng():
        whole = make_trainer(source, tmp_path / "whole")
        whole.fit()
        saved = tmp_path / "whole" / f"ep{batch // 6}-ba{batch}"
        resumed = make_trainer(source, tmp_path / "resumed", load_path=saved)
        resumed.fit()
    assert torch.equal(resumed.state.model.weight, whole.state.model.weight)
