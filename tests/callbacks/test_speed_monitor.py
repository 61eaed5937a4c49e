"""The speed of training is logged, over a window."""

import pytest

from composable import State
from composable.callbacks import SpeedMonitor
from composable.core.logger import Logger
from composable.core.time import Timestamp
from composable.loggers import InMemoryLogger
from tests.support.tiny import NoRead, linear, make_trainer


def run(monitor, steps, now=None):
    """Return the logs of batches of (samples, tokens, seconds), and the timestamp after them."""
    memory = InMemoryLogger()
    logger = Logger([memory])
    state = State(linear(), timestamp=now or Timestamp())
    monitor.fit_start(state, logger)
    for step in steps:
        state = state.evolve(timestamp=state.timestamp.next_batch(*step))
        monitor.batch_end(state, logger)
    return [metrics for _, metrics in memory.records], state.timestamp


STEPS = [(4, 8, 1.0), (4, 8, 1.0), (8, 8, 2.0), (4, 4, 0.5), (2, 2, 0.5)]


def test_a_speed_is_a_mean_over_the_window():
    logs, _ = run(SpeedMonitor(window_size=2), STEPS)

    assert [log["throughput/batches_per_sec"] for log in logs] == [1.0, 2 / 3, 2 / 2.5, 2.0]
    assert [log["throughput/samples_per_sec"] for log in logs] == [4.0, 4.0, 12 / 2.5, 6.0]
    assert [log["throughput/tokens_per_sec"] for log in logs] == [8.0, 16 / 3, 12 / 2.5, 6.0]


def test_nothing_is_logged_before_the_window_is_full():
    assert run(SpeedMonitor(window_size=6), STEPS)[0] == []
    assert len(run(SpeedMonitor(window_size=5), STEPS)[0]) == 1
    assert len(run(SpeedMonitor(window_size=1), STEPS)[0]) == 5


def test_tokens_that_nobody_counts_have_no_speed():
    logs, _ = run(SpeedMonitor(window_size=1), [(4, 0, 1.0)])

    assert logs == [{"throughput/batches_per_sec": 1.0, "throughput/samples_per_sec": 4.0}]


def test_no_time_has_no_speed():
    assert run(SpeedMonitor(window_size=1), [(4, 0, 0.0)])[0] == []


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_run_that_goes_on_logs_what_the_whole_run_does(cut):
    whole, _ = run(SpeedMonitor(window_size=3), STEPS)
    before, after = SpeedMonitor(window_size=3), SpeedMonitor(window_size=3)

    first, now = run(before, STEPS[:cut])
    after.load_state_dict(before.state_dict())
    second, _ = run(after, STEPS[cut:], now)

    assert first + second == whole


def test_a_window_of_another_run_is_dropped():
    monitor = SpeedMonitor(window_size=2)
    slow = [(4, 0, 9.0)] * 3

    run(monitor, STEPS[:1])

    assert run(monitor, slow)[0] == run(SpeedMonitor(window_size=2), slow)[0]


def test_two_monitors_know_nothing_of_each_other():
    one, other = SpeedMonitor(2), SpeedMonitor(2)

    run(one, STEPS)

    assert len(one.state_dict()["window"]) == 3
    assert other.state_dict() == {"window": []}


def test_in_a_run_it_logs_after_every_batch_and_never_waits_for_the_device():
    memory = InMemoryLogger()
    trainer = make_trainer(
        callbacks=SpeedMonitor(window_size=2),
        loggers=memory,
        count_tokens=lambda batch: 12,
        nonfinite_loss="ignore",  # or it would be looked at when the run ends
    )

    with NoRead():
        trainer.fit()

    assert len(memory.series("throughput/batches_per_sec")) == 5
    ratio = memory.latest["throughput/tokens_per_sec"] / memory.latest["throughput/samples_per_sec"]
    assert ratio == pytest.approx(3)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_window_of_no_batches_is_refused(size):
    with pytest.raises(ValueError, match=f"window_size={size!r} must be"):
        SpeedMonitor(window_size=size)


def test_a_state_of_something_else_is_refused():
    with pytest.raises(
        ValueError, match=r"SpeedMonitor was given .*, and its own has \['window'\]"
    ):
        SpeedMonitor().load_state_dict({"best": 1.0})
