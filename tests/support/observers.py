"""Observers of all kinds, and the ways in which a Trainer gets to know them."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from hypothesis import strategies as st

from composable import Callback, Trainer, register_global_callback
from composable.loggers import InMemoryLogger
from tests.support.runs import Gambler, Trace


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


def a_function_that_draws():
    def draw(event, state, logger):
        torch.rand(3)

    return draw


WAYS = {
    Gambler: ("callbacks", "added", "entered", "registered"),
    Trace: ("callbacks", "added", "entered", "registered"),
    Probes: ("callbacks", "added", "entered", "registered"),
    LogsToo: ("loggers", "added", "entered", "registered"),
    a_function_that_draws: ("callbacks", "added", "registered"),
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
