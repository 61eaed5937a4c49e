"""Callbacks and loggers for tests, and the ways in which a Trainer gets to know them."""

import copy
import io
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from composable import Callback, Control, Event, State, Trainer, register_global_callback
from composable.callbacks import (
    ActivationMonitor,
    CheckLoss,
    ComputeNorm,
    Generate,
    GradientNoise,
    ImageVisualizer,
    LRMonitor,
    MemoryMonitor,
    NaNMonitor,
    OptimizerMonitor,
    Predictions,
    Printer,
    Profiler,
    RuntimeEstimator,
    SpeedMonitor,
    SystemMonitor,
    TimeSplit,
)
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger


class Trace(Callback):
    """Records every event, in order, and the timestamp at it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.timestamps: list[Any] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.events.append(event)
        self.timestamps.append(state.timestamp)


class Watch(Callback):
    """Records what `read(state)` returns at some events, or at all."""

    def __init__(self, *events: Event, read: Callable[[State], Any] = lambda state: None) -> None:
        self.events, self.read = events, read
        self.seen: list[tuple[Event, Any]] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if not self.events or event in self.events:
            self.seen.append((event, self.read(state)))

    @property
    def values(self) -> list[Any]:
        """What was recorded, without the events."""
        return [value for _, value in self.seen]


class Gambler(Callback):
    """Draws from every global generator at every event."""

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        torch.rand(3)
        random.random()
        np.random.rand()  # noqa: NPY002


class Asks(Callback):
    """Requests something when an event fires for the n-th time, counted from 0."""

    def __init__(self, event: Event, n: int, request: Control) -> None:
        self.event, self.n, self.request = event, n, request

    def run_event(self, event: Event, state: State, logger: Logger) -> Control | None:
        if event is not self.event:
            return None
        self.n -= 1
        return self.request if self.n == -1 else None


class Raise(Callback):
    """Raises an error once, at one event of one batch."""

    def __init__(
        self, error: BaseException, event: Event = Event.BATCH_START, batch: int = 4
    ) -> None:
        self.error: BaseException | None = error
        self.event, self.batch = event, batch

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if self.error and event is self.event and state.timestamp.batch == self.batch:
            error, self.error = self.error, None
            raise error


class Probes(Callback):
    """Computes with copies of what it sees, and reads numbers."""

    def batch_start(self, state, logger):
        copy.deepcopy(state.model)(state.inputs).sum().backward()

    def after_backward(self, state, logger):
        norms = {f"norm/{name}": grad.norm() for name, grad in state.current_gradients().items()}
        logger.log_metrics({**norms, "doubled": 2 * state.loss.item()})

    def eval_batch_end(self, state, logger):
        copy.deepcopy(state.model).train()(state.inputs)


class LogsToo(Gambler, InMemoryLogger):
    """A logger that draws random numbers at every event."""


class Samples(Generate):
    """Generates with any model: draws random numbers, and writes to the buffers."""

    def _generator(self, model):
        def generate(tokens):
            for buffer in model.buffers():
                buffer.add_(1)
            return torch.randint_like(tokens, 9)

        return SimpleNamespace(generate=generate)


TRACES = tempfile.TemporaryDirectory()  # until the process ends


def a_profiler():
    return Profiler(TRACES.name, wait=0, active=2, repeat=None)


def images():
    return ImageVisualizer("2ba", mode="segmentation")


def memory():
    return MemoryMonitor("1ba")


def a_function_that_draws():
    def draw(event, state, logger):
        torch.rand(3)

    return draw


MONITORS = {
    "activations": lambda: ActivationMonitor("2ba", inputs=True),
    "loss": NaNMonitor,
    "infinite loss": CheckLoss,
    "norms": lambda: OptimizerMonitor("1ba", per_parameter=True),
    "norms of parameters": lambda: ComputeNorm("2ba"),
    "noise": lambda: GradientNoise("1ba"),
    "samples": lambda: Samples(torch.tensor([[1, 2]]), "2ba"),
    "predictions": lambda: Predictions("1ba"),
    "rates": LRMonitor,
    "lines": lambda: Printer("1ba", stream=io.StringIO()),
    "time": lambda: RuntimeEstimator("1ba"),
    "speed": lambda: SpeedMonitor(2, flops_per_batch="count"),
    "machine": lambda: SystemMonitor("0.001sec"),
    "parts of the time": lambda: TimeSplit(1),
}
"""Builders of the callbacks that measure, at short intervals."""

WAYS = {
    Gambler: ("callbacks", "added", "entered", "registered"),
    Trace: ("callbacks", "added", "entered", "registered"),
    Probes: ("callbacks", "added", "entered", "registered"),
    LogsToo: ("loggers", "added", "entered", "registered"),
    a_profiler: ("callbacks", "added", "entered", "registered"),
    memory: ("callbacks", "added", "entered", "registered"),
    images: ("callbacks", "added", "entered", "registered"),
    a_function_that_draws: ("callbacks", "added", "registered"),
    **dict.fromkeys(MONITORS.values(), ("callbacks", "added", "entered", "registered")),
}


@st.composite
def watched(draw):
    """Draw observers, each with the way in which it is passed to the Trainer."""
    builders = draw(st.lists(st.sampled_from(list(WAYS)), min_size=1, max_size=4))
    return [(build, draw(st.sampled_from(WAYS[build]))) for build in builders]


@contextmanager
def watched_by(observers: Any, build: Callable[..., Trainer], **options: Any) -> Iterator[Trainer]:
    """Build a Trainer by `build(callbacks=, loggers=, ...)`, with these observers."""
    made = [(one(), way) for one, way in observers]
    ways = ("callbacks", "loggers", "added", "entered", "registered")
    of = {way: [one for one, own in made if own == way] for way in ways}
    with ExitStack() as stack:
        for one in of["entered"]:
            stack.enter_context(one)
        for one in of["registered"]:
            stack.callback(register_global_callback(one).remove)
        for given in ("callbacks", "loggers"):
            options[given] = [*options.get(given, ()), *of[given]]
        training = build(**options)
        for one in of["added"]:
            training.add_callback(one)
        yield training
