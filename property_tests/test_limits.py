"""Law: an epoch or an evaluation of N batches is that of a loader that is cut by hand."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from composable import Evaluator
from composable.distributed import DDP, FSDP2
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.optim import cosine
from property_tests.test_resume import (
    check_resuming,
    equal,
    everything,
    logged,
    points,
    stream_with_state,
    with_generator,
)
from tests.support.data import NoisyExamples, batches, stream
from tests.support.outcomes import differences
from tests.support.processes import run
from tests.support.runs import VISION
from tests.support.strategies import fewer, single

pytestmark = pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")


class Cut:
    """The first of what another object yields."""

    def __init__(self, inner: Any, count: int) -> None:
        self.inner, self.count = inner, count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.inner), self.count)

    def __len__(self) -> int:
        return self.count


class Rows(IterableDataset[Any]):
    """Examples without an end, or with one."""

    def __init__(self, end: int | None = None) -> None:
        self.end, self.data = end, NoisyExamples(18, images=True)

    def __iter__(self) -> Iterator[Any]:
        return (self.data[number % 18] for number in islice(count(), self.end))

    def __len__(self) -> int:
        return len(range(self.end))  # type: ignore[arg-type]  # a TypeError without an end


def shuffled(cut: int | None = None, workers: int = 0) -> DataLoader[Any]:
    """Build a loader that shuffles, cut by its sampler."""
    data = NoisyExamples(18, images=True)
    order: Any = BatchSampler(RandomSampler(data), 4, drop_last=False)
    sampler = order if cut is None else Cut(order, cut)
    return DataLoader(data, batch_sampler=sampler, num_workers=workers)


def noise() -> Iterator[Any]:
    """Yield batches of the global generator without an end."""
    return ((torch.randn(4, 2, 8, 8), torch.tensor([0, 1, 2, i % 3])) for i in count())


class Noise:
    """The same as an iterable."""

    def __iter__(self) -> Iterator[Any]:
        return noise()


def cut_if(loader: Any, cut: int | None) -> Any:
    return loader if cut is None else Cut(loader, cut)


LOADERS = {
    "list": lambda cut=None: batches(18, images=True)[:cut],
    "stream": lambda cut=None: cut_if(stream(18, images=True), cut),
    "shuffled": shuffled,
    "workers": lambda cut=None: shuffled(cut, 1),
    "endless dataset": lambda cut=None: DataLoader(Rows(cut and 4 * cut), batch_size=4),
    "endless function": lambda cut=None: noise if cut is None else Cut(Noise(), cut),
}
SPLITS = [{}, {"accumulate_batches": 2}, {"parallel": DDP(shards=2)}]


def train(loader: Any, **options: Any) -> Any:
    log = InMemoryLogger()
    defaults = {"max_duration": "2ep", "loggers": log, "schedulers": cosine()}
    trainer = VISION.trainer(loader=loader, **{**defaults, **options})
    trainer.fit()
    return everything(trainer), logged(log), trainer.state.epoch_length


@pytest.mark.parametrize("name", LOADERS)
@fewer
@given(number=st.integers(1, 4), split=st.sampled_from(SPLITS))
def test_limited_epochs_are_those_of_a_loader_cut_by_hand(name, number, split):
    make = LOADERS[name]
    limited = train(make(), epoch_batches=number, **split)
    assert differences(limited, train(make(number), **split), equal) == []


@pytest.mark.parametrize("name", LOADERS)
@fewer
@given(number=st.integers(1, 4))
def test_limited_evaluations_are_those_of_a_loader_cut_by_hand(name, number):
    make = LOADERS[name]
    options = {"metrics": {"accuracy": accuracy}, "max_duration": "2ba", "eval_interval": "1ba"}
    given = [
        {"eval_dataloader": make(), "eval_batches": number},
        {"eval_dataloader": Evaluator("eval", make(), batches=number), "eval_batches": 1},
        {"eval_dataloader": make(number)},
    ]
    *limited, by_hand = [train(batches(18, images=True), **one, **options) for one in given]
    for one in limited:
        assert differences(one, by_hand, equal) == []


LIMITS = {
    "loader": {"loader": lambda: shuffled()},
    "workers with a generator": {"loader": lambda: with_generator(num_workers=2)},
    "stream": {"loader": lambda: stream(18, images=True)},
    "stream with a state": {"loader": stream_with_state},
    "function": {"loader": lambda: noise},
    "function of a step": {"loader": lambda: by_step},
    "accumulation": {"loader": lambda: shuffled(), "accumulate_batches": lambda: 2},
    "shards": {"loader": lambda: shuffled(), "parallel": lambda: DDP(shards=2)},
}


def by_step(key: Any, step: int) -> Any:
    """Return the batch of a step."""
    return torch.full((4, 2, 8, 8), float(step)), torch.tensor([0, 1, 2, step % 3])


@pytest.mark.parametrize("name", LIMITS)
@single
@given(at=points)
def test_a_run_of_limited_epochs_resumes(name, at):
    check_resuming(
        at,
        **LIMITS[name],
        epoch_batches=lambda: 3,
        eval_dataloader=lambda: stream(18, images=True),
        eval_batches=lambda: 2,
        eval_interval=lambda: "2ba",
    )


def shared(parallel: Any, limit: int | None, cut: int | None) -> Any:
    """Train and evaluate with a limit, or a loader that is cut; return the logged metrics."""
    limits = {} if limit is None else {"epoch_batches": limit, "eval_batches": limit}
    _, log, length = train(
        shuffled(cut), eval_dataloader=shuffled(cut), parallel=parallel, device="cpu", **limits
    )
    return log, length


@pytest.mark.parametrize("parallel", [DDP(), FSDP2()], ids=["copies", "sharded"])
def test_limits_are_those_of_all_processes(parallel):
    limited, by_hand = run(shared, 2, parallel, 3, None), run(shared, 2, parallel, None, 3)
    for one, other in zip(limited, by_hand, strict=True):
        assert differences(one, other, equal) == []


@pytest.mark.parametrize("name", ["epoch_batches", "eval_batches", "batches"])
def test_a_limit_beyond_the_end_of_a_loader_is_refused_or_a_warning(name):
    known, unknown = batches(8, images=True), stream(8, images=True)

    def build(loader):
        if name == "epoch_batches":
            return VISION.trainer(loader=loader, epoch_batches=3)
        limit = {name: 3} if name == "batches" else {}
        limits = {} if limit else {name: 3}
        return VISION.trainer(eval_dataloader=Evaluator("eval", loader, **limit), **limits)

    with pytest.raises(ValueError, match=f"{name}=3 .* 2 batches"):
        build(known)
    with pytest.warns(UserWarning, match="ended after 2 batches, before the limit of 3"):
        build(unknown).fit()
