"""Training stops when a result does not improve, and its speed is logged over a window."""

import pytest

from composable import Evaluator, State
from composable.callbacks import EarlyStopper, SpeedMonitor
from composable.core.control import Control
from composable.core.logger import Logger
from composable.core.time import Timestamp
from composable.loggers import InMemoryLogger
from composable.testing import NoSync
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer

NAN = float("nan")
STEPS = [(4, 8, 1.0), (4, 8, 1.0), (8, 8, 2.0), (4, 4, 0.5), (2, 2, 0.5)]


def epoch_of_stop(stopper, values, *, name="loss", start=0):
    """Show the results of epochs to a stopper; return the epoch after which it stops, if any."""
    logger, earlier = Logger(), {"test": {"loss": 1.0}}
    state = State(linear(), epoch_length=3, max_duration="100ep", metrics=earlier)
    for epoch, value in enumerate(values, start + 1):
        state = state.evolve(timestamp=Timestamp(epoch=epoch, batch=3 * epoch))
        stopper.eval_before_all(state, logger)
        state = state.evolve(metrics={**state.metrics, "eval": {name: value}})
        if stopper.eval_after_all(state, logger) is Control.STOP:
            return epoch
    return None


def speeds(monitor, steps, now=None):
    """Return the throughput at batches of (samples, tokens, seconds), and the timestamp after."""
    memory = InMemoryLogger()
    logger = Logger([memory])
    state = State(linear(), timestamp=now or Timestamp())
    monitor.fit_start(state, logger)
    for step in steps:
        state = state.evolve(timestamp=state.timestamp.next_batch(*step))
        monitor.batch_end(state, logger)
    rates = [{n: v for n, v in log.items() if "throughput" in n} for _, log in memory.records]
    return [log for log in rates if log], state.timestamp


# --- EarlyStopper


@pytest.mark.parametrize(
    ("patience", "epoch"), [("1ep", 4), ("2ep", 5), (0, 3), ("3ba", 4), ("4ba", 4), ("0.02dur", 5)]
)
def test_stops_at_the_first_evaluation_after_the_patience(patience, epoch):
    stopper = EarlyStopper("loss", patience=patience)

    assert epoch_of_stop(stopper, [3.0, 2.0, 2.0, 2.5, 2.0, 2.0]) == epoch
    assert stopper.best == 2.0


@pytest.mark.parametrize(
    ("options", "values", "epoch"),
    [
        ({}, [3.0, 4.0, 2.0, 2.0, 1.0, 1.0], None),  # a better result restarts the patience
        ({"min_delta": 0.25}, [1.0, 0.75, 0.75, 0.75], 3),
        ({"min_delta": 0.2}, [1.0, 0.75, 0.75, 0.75], 4),
        ({}, [NAN, NAN, NAN], 3),
        ({}, [NAN, 1.0, NAN, 0.5], None),
    ],
)
def test_only_a_better_result_restarts_the_patience(options, values, epoch):
    assert epoch_of_stop(EarlyStopper("loss", **options), values) == epoch


@pytest.mark.parametrize(
    ("monitor", "mode", "falling_is_better"),
    [
        ("loss", None, True),
        ("TopError", None, True),
        ("perplexity", None, True),
        ("accuracy", None, False),
        ("loss", "max", False),
        ("accuracy", "min", True),
    ],
)
def test_the_mode_is_given_or_follows_from_the_name(monitor, mode, falling_is_better):
    values = [0.9, 0.8, 0.7, 0.6] if falling_is_better else [0.6, 0.7, 0.8, 0.9]
    better, worse = EarlyStopper(monitor, mode=mode), EarlyStopper(monitor, mode=mode)

    assert epoch_of_stop(better, values, name=monitor) is None
    assert epoch_of_stop(worse, values[::-1], name=monitor) == 3


def test_results_of_other_evaluators_do_not_count():
    stopper = EarlyStopper("loss", dataloader_label="test")

    assert epoch_of_stop(stopper, [5.0] * 8) is None
    assert stopper.best is None


def test_every_run_ends_and_starts_without_the_state_of_the_last():
    stopper = EarlyStopper("loss", dataloader_label="test", min_delta=1e9, patience="2ep")
    stopper.load_state_dict({"best": -1e12, "since": 0, "evaluations": 3})
    evaluator = Evaluator("test", batches([4]))
    options = {"eval_dataloader": evaluator, "callbacks": stopper, "max_duration": "9ep"}

    assert [make_trainer(**options).fit().timestamp.epoch for _ in range(2)] == [4, 4]

    monitor, slow = SpeedMonitor(window_size=2), [(4, 0, 9.0)] * 3
    speeds(monitor, STEPS[:1])
    assert speeds(monitor, slow)[0] == speeds(SpeedMonitor(window_size=2), slow)[0]


def test_warns_if_the_evaluator_never_ran():
    stopper = EarlyStopper("loss")

    with pytest.warns(UserWarning, match="matches no evaluator that ran: none ran; pass an eval"):
        make_trainer(callbacks=stopper).fit()


# --- SpeedMonitor


def test_logs_the_mean_speed_over_the_window():
    logs, _ = speeds(SpeedMonitor(window_size=2), STEPS)

    assert [log["throughput/batches_per_sec"] for log in logs] == [1.0, 2 / 3, 2 / 2.5, 2.0]
    assert [log["throughput/samples_per_sec"] for log in logs] == [4.0, 4.0, 12 / 2.5, 6.0]
    assert [log["throughput/tokens_per_sec"] for log in logs] == [8.0, 16 / 3, 12 / 2.5, 6.0]


@pytest.mark.parametrize(
    ("size", "steps", "count"),
    [(6, STEPS, 0), (5, STEPS, 1), (1, STEPS, 5), (1, [(4, 0, 0.0)], 0)],
)
def test_logs_nothing_before_the_window_is_full_or_without_time(size, steps, count):
    assert len(speeds(SpeedMonitor(window_size=size), steps)[0]) == count


def test_tokens_that_are_not_counted_have_no_speed():
    logs, _ = speeds(SpeedMonitor(window_size=1), [(4, 0, 1.0)])

    assert logs == [{"throughput/batches_per_sec": 1.0, "throughput/samples_per_sec": 4.0}]


def test_logs_after_every_batch_without_reading_from_the_device():
    memory = InMemoryLogger()
    trainer = make_trainer(
        callbacks=SpeedMonitor(window_size=2),
        loggers=memory,
        count_tokens=lambda batch: 12,
        nonfinite_loss="ignore",  # or it would be looked at when the run ends
    )

    with NoSync():
        trainer.fit()

    assert len(memory.series("throughput/batches_per_sec")) == 5
    ratio = memory.latest["throughput/tokens_per_sec"] / memory.latest["throughput/samples_per_sec"]
    assert ratio == pytest.approx(3)


# --- both


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_loaded_state_continues_the_run(cut):
    values = [3.0, 2.0, 2.5, 2.5, 2.5]
    before, after = EarlyStopper("loss", patience="2ep"), EarlyStopper("loss", patience="2ep")
    epoch_of_stop(before, values[:cut])
    after.load_state_dict(before.state_dict())
    assert epoch_of_stop(after, values[cut:], start=cut) == 5

    before, after, whole = (SpeedMonitor(window_size=3) for _ in range(3))
    first, now = speeds(before, STEPS[:cut])
    after.load_state_dict(before.state_dict())
    assert first + speeds(after, STEPS[cut:], now)[0] == speeds(whole, STEPS)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EarlyStopper("loss").load_state_dict({"window": []}),
            r"EarlyStopper was given the state \['window'\]",
        ),
        (
            lambda: SpeedMonitor().load_state_dict({"best": 1.0}),
            r"SpeedMonitor was given .*, and its own has \['counted', 'eval_seconds', 'window'\]",
        ),
    ],
)
def test_rejects_invalid_arguments_and_states(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
