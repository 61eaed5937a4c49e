"""Laws: observers are inert, and global callbacks leave no trace."""

from contextlib import ExitStack
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable import Event, register_global_callback
from composable.algorithms import GradientClipping
from composable.core.state import FLOPS
from composable.loggers import InMemoryLogger
from composable.plan.global_callbacks import global_callbacks
from tests.support.algorithm_cases import algorithm_sets
from tests.support.data import batches, noisy_loader
from tests.support.models import conv_net, same, weights
from tests.support.observers import MONITORS, Raise, Watch, watched, watched_by
from tests.support.outcomes import differences, left_by
from tests.support.runs import PROBLEMS, make_trainer, trained, training_weights
from tests.support.strategies import few, fewer, seeds


def train(observers, model, loader, **options):
    """Return the weights after training with observers."""
    with watched_by(observers, partial(make_trainer, model, loader), **options) as training:
        training.fit()
    return training_weights(training)


@fewer
@given(watched(), algorithm_sets(), seeds, st.booleans())
@pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")
@pytest.mark.filterwarnings("ignore:GradientNoise measured nothing")
@pytest.mark.filterwarnings("ignore:Profiler skips a recording")
def test_observers_do_not_change_training(observers, algorithms, seed, checked):
    options = {
        "algorithms": algorithms,
        "seed": seed,
        "eval_dataloader": batches(images=True),
    }

    seen = train(observers, conv_net(), noisy_loader(images=True), check_effects=checked, **options)

    assert same(seen, trained(conv_net(), noisy_loader(images=True), **options))


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("name", MONITORS)
def test_a_monitor_does_not_change_training(name, problem):
    def left(**options):
        logger = InMemoryLogger()
        trainer = problem.trainer(
            loader=problem.shuffled(), eval_dataloader=problem.batches(), loggers=logger, **options
        )
        outcome = left_by(trainer.fit())
        # The operations that a SpeedMonitor counts are kept there: see `State.flops`.
        outcome["memory"] = {k: v for k, v in outcome["memory"].items() if k != FLOPS}
        return {**outcome, "losses": logger.series("loss/train")}

    options = {"grad_accum": 2, "algorithms": GradientClipping("norm", 0.1)}
    assert differences(left(callbacks=MONITORS[name](), **options), left(**options)) == []


raised_at = st.sampled_from(
    [
        (Event.FIT_START, 0),
        (Event.BATCH_START, 2),
        (Event.AFTER_FORWARD, 4),
        (Event.EVAL_START, 3),
        (Event.FIT_END, None),
    ]
)


@few
@given(st.sampled_from(["with", "register"]), raised_at, st.integers(1, 3))
def test_global_callbacks_have_no_lasting_effect(way, at, depth):
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


WAYS = {
    "with": lambda stack, callback: stack.enter_context(callback),
    "register": lambda stack, callback: stack.callback(register_global_callback(callback).remove),
}
operations = st.tuples(
    st.sampled_from(["begin", "end", "run"]), st.sampled_from(sorted(WAYS)), st.integers(0, 2)
)


@few
@given(st.lists(operations, max_size=12))
def test_a_run_calls_the_callbacks_that_are_global_at_its_start(program):
    callbacks, expected = [Watch(Event.BATCH_END) for _ in range(3)], [0, 0, 0]
    active = {(way, i): [] for way in WAYS for i in range(3)}
    training = make_trainer(loader=batches(4), max_duration="100ep")

    with ExitStack() as whole:
        for operation, way, i in [*program, ("run", "with", 0)]:
            if operation == "run":
                training.fit(duration="1ba")
                for k in range(3):
                    expected[k] += any(active[way, k] for way in WAYS)
            elif operation == "begin":
                active[way, i].append(whole.enter_context(ExitStack()))
                WAYS[way](active[way, i][-1], callbacks[i])
            elif active[way, i]:
                active[way, i].pop().close()

    assert [len(callback.seen) for callback in callbacks] == expected
    assert global_callbacks() == ()
