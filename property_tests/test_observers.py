"""Laws: observers are inert, and global callbacks leave no trace."""

from contextlib import ExitStack
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composable import Event, register_global_callback
from composable.loggers import InMemoryLogger
from composable.plan.global_callbacks import global_callbacks
from tests.support.algorithm_cases import algorithm_sets
from tests.support.data import batches, noisy_loader
from tests.support.models import conv_net, same, weights
from tests.support.observers import Raise, Watch, watched, watched_by
from tests.support.runs import make_trainer, trained
from tests.support.strategies import seeds


def train(observers, model, loader, **options):
    """Return the weights after training with observers."""
    with watched_by(observers, partial(make_trainer, model, loader), **options) as training:
        training.fit()
    return weights(training.state.model)


@settings(max_examples=15)
@given(watched(), algorithm_sets(), seeds, st.booleans())
@pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")
def test_observers_are_inert(observers, algorithms, seed, checked):
    options = {
        "algorithms": algorithms,
        "seed": seed,
        "eval_dataloader": batches(images=True),
    }

    seen = train(observers, conv_net(), noisy_loader(images=True), check_effects=checked, **options)

    assert same(seen, trained(conv_net(), noisy_loader(images=True), **options))


raised_at = st.sampled_from(
    [
        (Event.FIT_START, 0),
        (Event.BATCH_START, 2),
        (Event.AFTER_FORWARD, 4),
        (Event.EVAL_START, 3),
        (Event.FIT_END, None),
    ]
)


@given(st.sampled_from(["with", "register"]), raised_at, st.integers(1, 3))
def test_global_callbacks_leave_no_trace(way, at, depth):
    training, plain = (
        make_trainer(eval_dataloader=batches()),
        make_trainer(eval_dataloader=batches()),
    )
    plan, loggers = training.plan, training.logger.destinations
    error, logger = Raise(RuntimeError("no disk"), *at), InMemoryLogger()

    with ExitStack() as stack:
        for one in [error, logger, Watch(Event.BATCH_END)] * depth:
            if way == "with":
                stack.enter_context(one)
            else:
                stack.callback(register_global_callback(one).remove)
        with ExitStack() if at[1] is None else pytest.raises(RuntimeError, match="no disk"):
            training.fit()
    logged = len(logger.records)
    if training.state.timestamp.epoch < 2:
        training.fit()
    plain.fit()

    assert global_callbacks() == ()
    assert training.plan is plan
    assert training.logger.destinations == loggers
    assert len(logger.records) == logged
    assert same(weights(training.state.model), weights(plain.state.model))


class Watched:
    """A callback that becomes global and stops being so, and the batches that it must count."""

    def __init__(self):
        self.callback, self.expected = Watch(Event.BATCH_END), 0
        self.entered, self.handles = 0, []

    def enter(self):
        self.callback.__enter__()
        self.entered += 1

    def leave(self):
        if self.entered:
            self.callback.__exit__(None, None, None)
            self.entered -= 1

    def register(self):
        self.handles.append(register_global_callback(self.callback))

    def remove(self):
        if self.handles:
            self.handles.pop().remove()

    def expect_batch(self):
        self.expected += bool(self.entered or self.handles)

    def close(self):
        while self.entered:
            self.leave()
        while self.handles:
            self.remove()


operations = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "register", "remove", "run"]), st.integers(0, 2)),
    max_size=12,
)


@settings(max_examples=50)
@given(operations)
def test_a_run_hears_those_who_are_global_when_it_begins(program):
    watchers = [Watched() for _ in range(3)]
    training = make_trainer(loader=batches(4), max_duration="100ep")

    try:
        for operation, i in [*program, ("run", 0)]:
            if operation == "run":
                training.fit(duration="1ba")
                for watcher in watchers:
                    watcher.expect_batch()
            else:
                getattr(watchers[i], operation)()
        assert [len(w.callback.seen) for w in watchers] == [w.expected for w in watchers]
    finally:
        for watcher in watchers:
            watcher.close()

    assert global_callbacks() == ()
