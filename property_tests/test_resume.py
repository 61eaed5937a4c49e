"""Resume: a run that is interrupted after any batch ends like an uninterrupted run."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
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
from composable.algorithms import EMA, LabelSmoothing, MixUp, SelectiveBackprop
from composable.callbacks import EarlyStopper, SpeedMonitor
from composable.core.logger import Logger
from composable.core.state import State
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.optim import cosine, linear
from composable.utils.reproducibility import seed_context
from tests.support.algorithm_cases import algorithm_sets, cases_on
from tests.support.runs import (
    CLASSES,
    PROBLEMS,
    VISION,
    Draws,
    NoisyExamples,
    adam,
    batches,
    examples,
    mlp,
    plain_loop,
    sgd,
    six_algorithms,
    stream,
    trained,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning"),
    pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning"),
]

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are safe from this process, and soon written."""
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


def check_going_on(at: int, **made: Build) -> None:
    """Stop at a point, resume in another Trainer, and compare the outcomes."""
    with TemporaryDirectory(dir=MEMORY) as folder:
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
    assert equal(everything(again), everything(whole))
    told = logged(after)
    assert equal(flat(told), flat(logged(never)[len(logged(never)) - len(told) :]))


def everything(trainer: Trainer) -> list[Any]:
    """Return the whole outcome of a run, except for its duration."""
    state = trainer.state
    clock = {k: v for k, v in attrs.asdict(state.timestamp).items() if not k.endswith("_wct")}
    return flat(
        [
            state.model.state_dict(),
            [optimizer.state_dict() for optimizer in state.optimizers],
            [scheduler.state_dict() for scheduler in trainer._run.rates.steppers],
            state.memory,
            state.metrics,
            state.loss,
            clock,
            str(state.max_duration),
        ]
    )


def logged(logger: InMemoryLogger) -> list[Any]:
    """Return the logged metrics in order, with their times and without measured durations."""
    return [
        [now.epoch, now.batch, {k: v for k, v in metrics.items() if "throughput" not in k}]
        for now, metrics in logger.records
    ]


def flat(tree: Any) -> list[Any]:
    """Return the leaves of a tree and their keys."""
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in flat(item)]
    if hasattr(tree, "items"):
        return [leaf for key, item in tree.items() for leaf in (str(key), *flat(item))]
    return [tree]


def equal(ours: list[Any], theirs: list[Any]) -> bool:
    """Return whether two lists of leaves are equal, to the bit."""
    return len(ours) == len(theirs) and all(map(equal_leaf, ours, theirs))


def equal_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


points = st.integers(1, POINTS)
EACH = [(problem, one) for problem in PROBLEMS for one in cases_on(problem)]
sets = st.sampled_from(PROBLEMS).flatmap(
    lambda problem: st.tuples(st.just(problem), algorithm_sets(problem))
)


# --- algorithms ---


@settings(max_examples=20)
@example(5, (VISION, six_algorithms()))
@given(points, sets)
def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(at, chosen):
    problem, algorithms = chosen
    check_going_on(at, problem=lambda: problem, algorithms=lambda: algorithms)


@pytest.mark.parametrize(("problem", "case"), EACH, ids=str)
@settings(max_examples=3)
@given(data=st.data())
def test_with_every_algorithm_by_itself_a_run_goes_on(problem, case, data):
    at, algorithm = data.draw(points), data.draw(case.instances)
    check_going_on(at, problem=lambda: problem, algorithms=lambda: [algorithm])


@pytest.mark.parametrize("at", range(1, POINTS + 1))
def test_a_run_goes_on_from_every_point(at):
    check_going_on(at, algorithms=six_algorithms)


COMBINATIONS = {
    "chain": lambda: [chain(MixUp(0.4), LabelSmoothing(0.1))],
    "during": lambda: [during("0.3dur", "0.7dur", MixUp(0.4)), during("3ba", "2ep", EMA("2ba"))],
    "every": lambda: [every("2ba", MixUp(0.4)), every("2ep", LabelSmoothing(0.2))],
    "choose": lambda: [choose([MixUp(0.4), LabelSmoothing(0.1), identity])],
    "anneal": lambda: [anneal(LabelSmoothing, smoothing=linear(0.3, 0.0))],
    "nested": lambda: [
        every("2ba", choose([chain(MixUp(0.4), LabelSmoothing(0.1)), identity])),
        during("1ep", "3ep", chain(SelectiveBackprop(0.0, 1.0), Draws())),
    ],
}


@pytest.mark.parametrize("made", COMBINATIONS.values(), ids=COMBINATIONS)
@settings(max_examples=4)
@given(at=points)
def test_combinations_go_on(made, at):
    check_going_on(at, algorithms=made)


def test_the_end_of_an_epoch_belongs_to_the_window_of_its_last_batch_in_a_run_that_goes_on_too():
    check_going_on(BATCHES, algorithms=lambda: [during("4ba", "5ba", EMA("1ep"))])


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


@settings(max_examples=6)
@given(at=st.integers(1, POINTS // 2))
def test_what_was_done_at_the_start_of_training_is_not_done_twice(at):
    check_going_on(at, algorithms=lambda: [ShortenTraining()], max_duration=lambda: "16ba")


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


@settings(max_examples=6)
@given(at=points)
def test_a_model_that_is_replaced_at_the_start_of_training_goes_on(at):
    check_going_on(at, algorithms=lambda: [LateSurgery(), EMA("2ba")])


@settings(max_examples=6)
@given(at=points)
def test_an_algorithm_of_a_user_goes_on_without_a_line_of_its_own(at):
    check_going_on(at, algorithms=lambda: [Yesterdays(), Yesterdays(name="another")])


def test_what_an_algorithm_remembers_of_the_model_is_the_model_again():
    with TemporaryDirectory(dir=MEMORY) as folder:
        made = {"algorithms": lambda: [Yesterdays()]}
        build(Path(folder), 4, InMemoryLogger(), Stop(None), made).fit()
        again = build(Path(folder), 4, InMemoryLogger(), Stop(None), made)

    assert again.state.memory["Yesterdays"]["live"] is next(again.state.model.parameters())


# --- what else a run is made of ---

SCHEDULERS = {
    "schedule": lambda: cosine(warmup="3ba"),
    "every epoch": lambda: partial(StepLR, step_size=1, gamma=0.5),
    "every batch": lambda: partial(OneCycleLR, max_lr=0.2, total_steps=EPOCHS * BATCHES + 1),
    "plateau": lambda: partial(ReduceLROnPlateau, patience=0, threshold=1.0),
}


def evaluation() -> list[Any]:
    return batches(6, size=4, images=True)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=4)
@given(at=points)
def test_schedules_go_on(name, at):
    check_going_on(
        at,
        schedulers=SCHEDULERS[name],
        step_schedulers_every_batch=lambda: name == "every batch",
        eval_dataloader=evaluation,
        optimizers=lambda: adam,
    )


RUNS: dict[str, dict[str, Build]] = {
    "accumulation": {"grad_accum": lambda: 3},
    "a loader of unknown length": {"loader": lambda: stream(EXAMPLES, images=True)},
    "evaluation": {
        "eval_dataloader": evaluation,
        "eval_interval": lambda: "2ba",
        "metrics": lambda: {"accuracy": accuracy},
    },
    "iterations": {"iteration_length": lambda: "2ep"},
    "a length in batches": {"max_duration": lambda: "13ba"},
    "a length in samples": {"max_duration": lambda: "40sp"},
    "logging now and then": {"log_interval": lambda: "1ep"},
    "epochs that were ended early": {
        "callbacks": lambda: [EndsEpochs()],
    },
    "callbacks that remember": {
        "callbacks": lambda: [
            EarlyStopper("loss", patience="1ep"),
            EarlyStopper("accuracy", patience="9ep"),
            SpeedMonitor(window_size=3),
        ],
        "eval_dataloader": evaluation,
        "metrics": lambda: {"accuracy": accuracy},
    },
    "a stop": {"callbacks": lambda: [StopsEarly()]},
}


class StopsEarly(Callback):
    """Ends the run after its eighth batch."""

    def batch_end(self, state: State, logger: Logger) -> Control | None:
        return Control.STOP if state.timestamp.batch == 8 else None


def test_what_is_logged_at_the_end_of_an_epoch_of_unknown_length_is_logged_alike():
    check_going_on(
        BATCHES,
        loader=lambda: stream(EXAMPLES, images=True),
        log_interval=lambda: "1ep",
        schedulers=cosine,
    )


class EndsEpochs(Callback):
    """Ends every epoch after its third batch."""

    def batch_checkpoint(self, state: State, logger: Logger) -> Control | None:
        return Control.END_EPOCH if state.timestamp.batch_in_epoch == 3 else None


@pytest.mark.parametrize("name", RUNS)
@settings(max_examples=5)
@given(at=points)
def test_every_kind_of_run_goes_on(name, at):
    check_going_on(at, algorithms=lambda: [MixUp(0.4), EMA("2ba")], **RUNS[name])


def workers(count: int) -> DataLoader[Any]:
    data = NoisyExamples(EXAMPLES, images=True)
    return DataLoader(data, batch_size=4, shuffle=True, num_workers=count)


@settings(max_examples=4)
@given(at=points)
def test_a_data_set_that_draws_goes_on(at):
    check_going_on(at, loader=lambda: workers(0))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize(("count", "at"), [(1, 8), (3, 13)])
def test_with_worker_processes_too(count, at):
    check_going_on(at, loader=lambda: workers(count))


def test_any_number_of_workers_goes_on_with_the_work_of_any_other():
    numbers = iter([0, 2, 1])
    check_going_on(9, loader=lambda: workers(next(numbers)))


def follows_its_own(**options: Any) -> DataLoader[Any]:
    """Build a loader whose order comes from a generator of its own."""
    own = torch.Generator().manual_seed(3)
    return DataLoader(NoisyExamples(EXAMPLES, images=True), 4, generator=own, **options)


@pytest.mark.parametrize("at", range(1, POINTS + 1))
def test_a_loader_with_a_generator_of_its_own_goes_on_from_every_point(at):
    check_going_on(at, loader=lambda: follows_its_own(shuffle=True))


@pytest.mark.parametrize("at", [3, BATCHES + 1, 2 * BATCHES])
def test_a_sampler_with_a_generator_of_its_own_goes_on(at):
    def loader() -> DataLoader[Any]:
        data, own = NoisyExamples(EXAMPLES, images=True), torch.Generator().manual_seed(3)
        sampler = WeightedRandomSampler([1.0, 2.0] * (EXAMPLES // 2), EXAMPLES, generator=own)
        return DataLoader(data, 4, sampler=sampler)

    check_going_on(at, loader=loader)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
def test_with_worker_processes_a_generator_of_the_loader_goes_on_too():
    check_going_on(8, loader=lambda: follows_its_own(shuffle=True, num_workers=1))


def test_from_epoch_to_epoch_a_generator_of_the_loader_moves_on_as_in_a_plain_loop():
    def loader() -> DataLoader[Any]:
        own = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(*examples(EXAMPLES)), 4, shuffle=True, generator=own)

    model = mlp()
    by_hand = plain_loop(model, loader(), sgd(model.parameters()), epochs=EPOCHS)

    assert equal(trained(mlp(), loader(), max_duration=f"{EPOCHS}ep"), by_hand)
