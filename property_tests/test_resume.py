"""Resume: a run that is interrupted after any batch ends like an uninterrupted run."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from composable import (
    Algorithm,
    Callback,
    Control,
    Event,
    Trainer,
    anneal,
    chain,
    choose,
    during,
    every,
    identity,
)
from composable.algorithms import (
    EMA,
    LabelSmoothing,
    LayerFreezing,
    MixUp,
    SelectiveBackprop,
    StochasticDepth,
    WholeLoss,
)
from composable.callbacks import EarlyStopper, SpeedMonitor, ThresholdStopper
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Timestamp
from composable.data import WorkerShard
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.optim import cosine, linear
from composable.utils.reproducibility import seed_context
from tests.support.algorithm_cases import algorithm_sets, cases_on
from tests.support.algorithms import Draws, six_algorithms
from tests.support.campaign import FULL, drawn, second_once
from tests.support.data import NoisyExamples, batches, examples, stream
from tests.support.models import CLASSES, conv_net, mlp, same
from tests.support.observers import MONITORS
from tests.support.outcomes import differences, left_by
from tests.support.runs import PROBLEMS, VISION, adam, plain_loop, sgd, trained
from tests.support.strategies import fewer, single

pytestmark = [
    pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning"),
    pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning"),
    pytest.mark.filterwarnings("ignore:Cosine is measured in epochs"),  # of a stream
]

EXAMPLES, BATCHES, EPOCHS = 18, 5, 3
POINTS = EPOCHS * (BATCHES + 1)
"""The points at which a run can be saved: after each batch, and after each epoch."""


def point(state: State) -> int:
    """Return the number of a point, from 1 on."""
    return state.timestamp.batch + state.timestamp.epoch


class Stopped(Exception):
    """The run was stopped, as if its process had died."""


class Stop(Callback):
    """Stops a run right after it was saved at a point."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def after_save(self, state: State, logger: Logger) -> None:
        if point(state) == self.at:
            raise Stopped


Build = Callable[[], Any]


def build(folder: Path, at: int, logger: InMemoryLogger, stop: Stop, made: dict[str, Build]) -> Any:
    """Build a run that is saved at a point, from new parts."""
    parts = {name: make() for name, make in made.items()}
    problem = parts.pop("problem", VISION)
    loader = parts.pop("loader", None)
    options: dict[str, Any] = {
        "max_duration": f"{EPOCHS}ep",
        "save_folder": folder,
        "save_interval": lambda state, event: point(state) == at,
        "callbacks": [stop, *parts.pop("callbacks", [])],
        "loggers": [logger],
        "check_effects": False,
        "autoresume": True,
    }
    loader = problem.shuffled(EXAMPLES) if loader is None else loader
    return problem.trainer(loader=loader, **{**options, **parts})


def check_resuming(at: int, **made: Build) -> None:
    """Stop at a point, resume in another Trainer, and compare the outcomes."""
    with TemporaryDirectory() as folder:
        never, after = InMemoryLogger(), InMemoryLogger()
        whole = build(Path(folder, "whole"), at, never, Stop(None), made)
        whole.fit()
        stopped = build(Path(folder, "run"), at, InMemoryLogger(), Stop(at), made)
        with suppress(Stopped):
            stopped.fit()
        again = build(Path(folder, "run"), at, after, Stop(None), made)
        reached = point(whole.state) >= at
        assert point(again.state) == (at if reached else point(whole.state))
        again.fit()
    assert differences(everything(again), everything(whole), equal) == []
    assert differences(logged(after), logged(never), equal) == []


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the bit, whatever their strides."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other or (one != one and other != other))  # NaN is itself


def everything(trainer: Trainer) -> dict[str, Any]:
    """Return the whole outcome of a run, except for its duration."""
    state = trainer.state
    return {
        **left_by(state),
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in trainer._run.rates.steppers],
        "loss": state.loss,
        "losses": state.losses,
        "iteration": state.timestamp.iteration,
        "max_duration": str(state.max_duration),
    }


_MEASURED = ("system/", "throughput/", "time/", "time_split/")


def logged(logger: InMemoryLogger) -> list[Any]:
    """Return the logged metrics in order, with their times and without measured durations."""
    found = [
        [now.epoch, now.batch, {k: v for k, v in metrics.items() if not k.startswith(_MEASURED)}]
        for now, metrics in logger.records
    ]
    return [row for row in found if row[2]]


points = st.integers(0, POINTS - 1).map(lambda number: (number + POINTS // 2) % POINTS + 1)
"""The simplest is amid an epoch in the middle of the run."""
EACH = second_once((problem, one) for problem in PROBLEMS for one in cases_on(problem))
sets = st.sampled_from(PROBLEMS).flatmap(
    lambda problem: st.tuples(st.just(problem), algorithm_sets(problem))
)


# --- algorithms ---


@fewer
@given(points, sets)
def test_resumed_run_equals_the_uninterrupted_run(at, chosen):
    problem, algorithms = chosen
    check_resuming(at, problem=lambda: problem, algorithms=lambda: algorithms)


@pytest.mark.parametrize(("problem", "case"), EACH, ids=str)
@single
@given(data=st.data())
def test_run_with_each_algorithm_resumes(problem, case, data):
    at, algorithm = data.draw(points), data.draw(case.instances) if FULL else case.example
    check_resuming(at, problem=lambda: problem, algorithms=lambda: [algorithm])


@fewer
@given(points, st.sampled_from(["eval/loss", "eval/accuracy"]), st.sampled_from(["min", "max"]))
def test_run_that_ends_with_its_best_weights_resumes(at, metric, mode):
    check_resuming(
        at,
        algorithms=lambda: [EMA("2ba")],
        eval_dataloader=lambda: batches(8, images=True),
        eval_interval=lambda: "2ba",
        metrics=lambda: {"accuracy": accuracy},
        save_best=lambda: metric,
        save_best_mode=lambda: mode,
        load_best_at_end=lambda: True,
    )


@pytest.mark.parametrize("at", drawn(range(1, POINTS + 1), 6))
def test_run_resumes_from_every_point(at):
    check_resuming(at, algorithms=six_algorithms, loader=lambda: with_generator(shuffle=True))


@attrs.frozen(repr=False)
class ShortenTraining(Algorithm):
    """Acts at the start of training, which a resumed run doesn't repeat."""

    events = frozenset({Event.FIT_START})
    reads = frozenset({"max_duration"})
    writes = frozenset({"max_duration"})

    def apply(self, event: Event, state: State) -> State:
        return state.evolve(max_duration=state.max_duration * 0.5)  # type: ignore[operator]


@attrs.frozen(repr=False)
class Yesterdays(Algorithm):
    """What a user may write: memory of many kinds, and the weights themselves in it."""

    events = frozenset({Event.INIT, Event.FIT_START, Event.EPOCH_START, Event.BATCH_END})
    reads = frozenset({"memory", "model", "loss", "timestamp"})
    writes = frozenset({"memory", "model"})

    def apply(self, event: Event, state: State) -> State:
        old = dict(state.memory.get(self.name, {"counts": (0, {}), "losses": [], "seen": None}))
        count, by_event = old["counts"]
        by_event = {**by_event, event.value: by_event.get(event.value, 0) + 1}
        losses = [*old["losses"], state.loss] if event is Event.BATCH_END else old["losses"]
        first = next(state.model.parameters())
        new = {"counts": (count + 1, by_event), "losses": losses, "live": first, "seen": None}
        return state.remember(self.name, {**new, "norm": float(first.detach().norm())})


@attrs.frozen(repr=False)
class LateSurgery(Algorithm):
    """Replaces the model at the start of training, after the Trainer was built."""

    events = frozenset({Event.FIT_START})
    reads = frozenset({"model"})
    writes = frozenset({"model"})

    def apply(self, event: Event, state: State) -> State:
        with seed_context(1):
            head = torch.nn.Linear(CLASSES, CLASSES)
        return state.evolve(model=torch.nn.Sequential(state.model, head))


def test_memory_that_holds_the_model_holds_the_model_of_the_resumed_run():
    with TemporaryDirectory() as folder:
        made = {"algorithms": lambda: [Yesterdays()]}
        build(Path(folder), 4, InMemoryLogger(), Stop(None), made).fit()
        again = build(Path(folder), 4, InMemoryLogger(), Stop(None), made)

    assert again.state.memory["Yesterdays"]["live"] is next(again.state.model.parameters())


# --- runs of all kinds ---


class Requests(Callback):
    """Requests something after some batches."""

    def __init__(self, request: Control, due: Callable[[Timestamp], bool]) -> None:
        self.request, self.due = request, due

    def batch_checkpoint(self, state: State, logger: Logger) -> Control | None:
        return self.request if self.due(state.timestamp) else None


def evaluation() -> list[Any]:
    return batches(6, size=4, images=True)


def workers(count: int) -> DataLoader[Any]:
    data = NoisyExamples(EXAMPLES, images=True)
    return DataLoader(data, batch_size=4, shuffle=True, num_workers=count)


def with_generator(**options: Any) -> DataLoader[Any]:
    """Build a loader whose order comes from a generator of its own."""
    own = torch.Generator().manual_seed(3)
    return DataLoader(NoisyExamples(EXAMPLES, images=True), 4, generator=own, **options)


def with_sampler() -> DataLoader[Any]:
    """Build a loader whose sampler has a generator of its own."""
    data, own = NoisyExamples(EXAMPLES, images=True), torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler([1.0, 2.0] * (EXAMPLES // 2), EXAMPLES, generator=own)
    return DataLoader(data, 4, sampler=sampler)


def stream_with_state() -> DataLoader[Any]:
    pairs = zip(*examples(EXAMPLES, images=True), strict=True)
    return DataLoader(WorkerShard(list(pairs), 4), batch_size=4)


def combination(*algorithms: Algorithm) -> dict[str, Build]:
    return {"algorithms": lambda: list(algorithms)}


class NoisyNet(nn.Module):
    """A model that draws from the generators of Python and NumPy in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net()

    def forward(self, inputs: Tensor) -> Tensor:
        numpy_noise = float(np.random.normal())  # noqa: NPY002
        return self.net(inputs) * (1 + random.random() + numpy_noise)


def scheduled(scheduler: Any, every_batch: bool = False) -> dict[str, Build]:
    return {
        "schedulers": lambda: scheduler,
        "step_schedulers_every_batch": lambda: every_batch,
        "eval_dataloader": evaluation,
        "optimizers": lambda: adam,
    }


RUNS: dict[str, dict[str, Build]] = {
    "chain": combination(chain(MixUp(0.4), LabelSmoothing(0.1))),
    "during": combination(during("0.3dur", "0.7dur", MixUp(0.4)), during("3ba", "2ep", EMA("2ba"))),
    "every": combination(every("2ba", MixUp(0.4)), every("2ep", LabelSmoothing(0.2))),
    "choose": combination(choose([MixUp(0.4), LabelSmoothing(0.1), identity])),
    "anneal": combination(anneal(LabelSmoothing, smoothing=linear(0.3, 0.0))),
    "nested": combination(
        every("2ba", choose([chain(MixUp(0.4), LabelSmoothing(0.1)), identity])),
        during("1ep", "3ep", chain(SelectiveBackprop(0.0, 1.0), Draws())),
    ),
    "a change of max_duration in FIT_START": {
        **combination(ShortenTraining()),
        "max_duration": lambda: "30ba",
    },
    "surgery in FIT_START": combination(LateSurgery(), EMA("2ba")),
    "algorithms of a user": combination(Yesterdays(), Yesterdays(name="another")),
    "schedule": scheduled(cosine(warmup="3ba")),
    "scheduler": scheduled(partial(StepLR, step_size=1, gamma=0.5)),
    "scheduler of every batch": scheduled(
        partial(OneCycleLR, max_lr=0.2, total_steps=EPOCHS * BATCHES + 1), every_batch=True
    ),
    "plateau": scheduled(partial(ReduceLROnPlateau, patience=0, threshold=1.0)),
    "accumulation": {"grad_accum": lambda: 3},
    "loss of the whole, in parts": {
        **combination(WholeLoss(), EMA("2ba")),
        "grad_accum": lambda: 3,
        "optimizers": lambda: adam,
    },
    "batches that make one step": {
        "accumulate_batches": lambda: 2,
        "loader": lambda: with_generator(shuffle=True),
    },
    "batches of a stream with a state that make one step": {
        "accumulate_batches": lambda: 2,
        "loader": stream_with_state,
    },
    "loader of unknown length": {
        "loader": lambda: stream(EXAMPLES, images=True),
        "log_interval": lambda: "1ep",
        "schedulers": cosine,
    },
    "evaluation": {
        "eval_dataloader": evaluation,
        "eval_interval": lambda: "2ba",
        "metrics": lambda: {"accuracy": accuracy},
    },
    "iterations": {"iteration_length": lambda: "2ep"},
    "length in batches": {"max_duration": lambda: "13ba"},
    "length in samples": {"max_duration": lambda: "40sp"},
    "epochs that end early": {
        "callbacks": lambda: [Requests(Control.END_EPOCH, lambda now: now.batch_in_epoch == 3)]
    },
    "stop": {"callbacks": lambda: [Requests(Control.STOP, lambda now: now.batch == 8)]},
    "callbacks with state": {
        "callbacks": lambda: [
            EarlyStopper("loss", patience="1ep"),
            EarlyStopper("accuracy", patience="9ep"),
            EarlyStopper("loss", min_delta=1.0, patience="9eval"),
            SpeedMonitor(window_size=3, flops_per_batch="count"),
            ThresholdStopper("loss", 0.0),
        ],
        "eval_dataloader": evaluation,
        "metrics": lambda: {"accuracy": accuracy},
    },
    "callbacks that measure": {
        "callbacks": lambda: [build() for build in MONITORS.values()],
        "eval_dataloader": evaluation,
        "grad_accum": lambda: 2,
        "log_interval": lambda: "3ba",
    },
    "model that is replaced while its layers are frozen": combination(
        LayerFreezing(0.2), StochasticDepth(target=nn.ReLU, drop_warmup="0.7dur")
    ),
    "model that draws from Python and NumPy": {"model": NoisyNet},
    "stream, and a model that draws": {
        "model": NoisyNet,
        "loader": lambda: stream(EXAMPLES, images=True),
    },
    "dataset that draws": {"loader": lambda: workers(0)},
    "sampler with a generator": {"loader": with_sampler},
}


@pytest.mark.parametrize("name", RUNS)
@single
@given(at=points)
def test_every_kind_of_run_resumes(name, at):
    check_resuming(at, **{**combination(MixUp(0.4), EMA("2ba")), **RUNS[name]})


AT_THE_END_OF_AN_EPOCH = {
    "window": combination(during("4ba", "5ba", EMA("1ep"))),
    "loader of unknown length": RUNS["loader of unknown length"],
}


@pytest.mark.parametrize("made", AT_THE_END_OF_AN_EPOCH.values(), ids=AT_THE_END_OF_AN_EPOCH)
def test_run_resumes_between_the_last_batch_and_the_end_of_an_epoch(made):
    check_resuming(BATCHES, **made)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize(("counts", "at"), [([3, 3, 3], 13), ([0, 2, 1], 9)], ids=str)
def test_run_resumes_with_any_number_of_workers(counts, at):
    numbers = iter(counts)
    check_resuming(at, loader=lambda: workers(next(numbers)))
    check_resuming(at, loader=lambda: with_generator(shuffle=True, num_workers=1))


def test_generator_of_a_loader_advances_from_epoch_to_epoch_as_in_a_plain_loop():
    def loader() -> DataLoader[Any]:
        own = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(*examples(EXAMPLES)), 4, shuffle=True, generator=own)

    model = mlp()
    by_hand = plain_loop(model, loader(), sgd(model.parameters()), epochs=EPOCHS)

    assert same(trained(mlp(), loader(), max_duration=f"{EPOCHS}ep"), by_hand)
