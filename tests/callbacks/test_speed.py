"""The speed of a run, its operations and the time that is left are logged."""

import json

import pytest
import torch
from torch import nn

from composable import Event, State, Timestamp
from composable.callbacks import RuntimeEstimator, SpeedMonitor, runtime_estimator
from composable.callbacks._flops import peak_of
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import linear, mlp
from tests.support.observers import Watch
from tests.support.runs import make_trainer

STEPS = [(4, 8, 1.0), (4, 8, 1.0), (8, 8, 2.0), (4, 4, 0.5), (2, 2, 0.5)]


def run(*callbacks, **options):
    """Train with callbacks, and return the logger."""
    memory = InMemoryLogger()
    make_trainer(callbacks=list(callbacks), loggers=memory, **options).fit()
    return memory


# --- SpeedMonitor


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


def test_logs_after_every_batch():
    memory = run(SpeedMonitor(window_size=2), count_tokens=lambda batch: 12)

    assert len(memory.series("throughput/batches_per_sec")) == 5
    ratio = memory.latest["throughput/tokens_per_sec"] / memory.latest["throughput/samples_per_sec"]
    assert ratio == pytest.approx(3)


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_loaded_state_continues_the_window(cut):
    before, after, whole = (SpeedMonitor(window_size=3) for _ in range(3))
    first, now = speeds(before, STEPS[:cut])
    after.load_state_dict(before.state_dict())
    assert first + speeds(after, STEPS[cut:], now)[0] == speeds(whole, STEPS)[0]


def test_every_run_starts_without_the_window_of_the_last():
    monitor, slow = SpeedMonitor(window_size=2), [(4, 0, 9.0)] * 3
    speeds(monitor, STEPS[:1])
    assert speeds(monitor, slow)[0] == speeds(SpeedMonitor(window_size=2), slow)[0]


def flops(model=None, loader=None, **options):
    """Return the operations of a batch that are logged, and the log."""
    monitor = SpeedMonitor(1, **options)
    memory = run(monitor, model=model, loader=loader or batches(12), max_duration="3ba")
    latest = memory.latest
    if "throughput/flops_per_sec" not in latest:
        return None, latest
    return latest["throughput/flops_per_sec"] / latest["throughput/batches_per_sec"], latest


class KnowsItsFlops(nn.Linear):
    def flops_per_batch(self, batch):
        return 10.0 * len(batch[0])


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (linear, {}, None),
        (linear, {"flops_per_batch": 123}, 123),
        (linear, {"flops_per_batch": lambda batch: 2.0 * len(batch[0])}, 8),
        (lambda: KnowsItsFlops(4, 3), {}, 40),
        (lambda: KnowsItsFlops(4, 3), {"flops_per_batch": 5.0}, 5),
        (linear, {"flops_per_batch": "count"}, 2 * 2 * 4 * 4 * 3),
        (mlp, {"flops_per_batch": "count"}, 2 * 4 * (2 * 4 * 5 + 3 * 5 * 3)),
    ],
)
def test_operations_are_given_or_counted(model, options, expected):
    found, latest = flops(model(), **options)

    assert found == (expected if expected is None else pytest.approx(expected))
    assert "throughput/device/mfu" not in latest  # the peak of a CPU is not known


def test_counted_operations_are_scaled_by_the_samples_of_a_batch():
    found, _ = flops(loader=batches([4, 4, 2]), flops_per_batch="count")

    assert found == pytest.approx(2 * 2 * 2 * 4 * 3)


def test_operations_of_the_run_are_summed_and_zero_ones_are_not_logged():
    _, latest = flops(flops_per_batch=100.0)
    assert latest["flops/total"] == 300.0  # of three batches
    assert "flops/total" not in flops()[1]


def test_operations_of_the_run_are_in_the_state():
    watch = Watch(Event.BATCH_END, read=lambda state: state.flops)
    state = make_trainer(callbacks=[watch, SpeedMonitor(flops_per_batch=100.0)]).fit()

    assert watch.values == [100.0 * batch for batch in range(1, 7)]
    assert json.loads(state.to_json())["memory"]["flops"] == 600.0


@pytest.mark.parametrize("callbacks", [[], SpeedMonitor()])
def test_operations_are_none_if_nothing_counts_them(callbacks):
    assert make_trainer(callbacks=callbacks).fit().flops is None


def test_counting_calls_no_hook_of_the_user_and_draws_nothing():
    model, shapes = mlp(dropout=0.5), []
    model[0].register_forward_hook(lambda module, inputs, outputs: shapes.append(type(outputs)))

    run(SpeedMonitor(1, flops_per_batch="count"), model=model, max_duration="2ba")

    assert shapes == [torch.Tensor] * 2


def test_utilization_is_the_fraction_of_the_peak():
    _, latest = flops(flops_per_batch=100.0, gpu_flops_available=1e6)

    device = latest["throughput/device/flops_per_sec"]
    assert device == latest["throughput/flops_per_sec"]
    assert latest["throughput/device/mfu"] == pytest.approx(device / 1e6)


class Depends(nn.Linear):
    """A model whose operations depend on values."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_operations_that_can_not_be_counted_are_a_warning():
    with pytest.warns(UserWarning, match=r"operations of Depends.* Pass them as flops_per_batch"):
        found, _ = flops(Depends(4, 3), flops_per_batch="count")

    assert found is None


@pytest.mark.parametrize(
    ("device", "kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "float16", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A10G", "bfloat16", None),
        ("Tesla T4", "bfloat16", None),
        ("Tesla T4", "float16", 65e12),
        ("Tesla V100-PCIE-16GB", "float16", 112e12),
        ("NVIDIA GeForce RTX 4090", "float32", 82.6e12),
        ("NVIDIA A100-SXM4-80GB", "float64", None),
        ("cpu", "float32", None),
    ],
)
def test_peaks_of_devices(device, kind, peak):
    assert peak_of(device, kind) == peak


def test_times_of_training_and_evaluation_add_up():
    memory = run(SpeedMonitor(), eval_dataloader=batches(4), eval_interval="2ba")

    train, val, total = (memory.series(f"time/{name}") for name in ("train", "val", "total"))
    assert len(train) == 6
    assert val[0] == val[1] == 0.0 < val[2] == val[3] < val[4]
    assert [a + b for a, b in zip(train, val, strict=True)] == total


# --- RuntimeEstimator


class Time:
    """The clock of evaluation."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("composable.callbacks.runtime_estimator.time", Time())


def ended(estimator, state):
    """End the epoch."""
    state = state.evolve(timestamp=state.timestamp.next_epoch())
    estimator.epoch_end(state, Logger())
    return state


def estimates(estimator, batches_and_seconds, evaluations=(), *, state=None):
    """Return the estimates of (training, evaluation) after batches that take some seconds."""
    memory = InMemoryLogger()
    logger = Logger([memory])
    state = state or State(linear(), epoch_length=5, max_duration="4ep")
    if not state.timestamp.batch:
        estimator.fit_start(state, logger)
    for seconds in batches_and_seconds:
        estimator.batch_start(state, logger)
        now = state.timestamp
        state = state.evolve(timestamp=now.next_batch(4, 0, seconds), previous_timestamp=now)
        logger.timestamp = state.timestamp
        estimator.batch_end(state, logger)
        if state.timestamp.batch in evaluations:
            estimator.eval_before_all(state, logger)
            estimator.eval_start(state, logger)
            runtime_estimator.time.now += evaluations[state.timestamp.batch]
            state = state.evolve(metrics={"eval": {"loss": 1.0}})
            estimator.eval_end(state, logger)
            estimator.eval_after_all(state, logger)
        if state.timestamp.batch_in_epoch == state.epoch_length:
            state = ended(estimator, state)
    names = [f"time/remaining_estimate{part}" for part in ("_train", "_val", "")]
    rows = [(now.batch, *(m[name] for name in names)) for now, m in memory.records]
    return rows, state


def test_remaining_time_of_training_is_that_at_the_mean_speed():
    rows, _ = estimates(RuntimeEstimator("5ba"), [100.0] + [2.0] * 9)

    assert [(batch, train) for batch, train, *_ in rows] == [(5, 30.0), (10, 20.0)]
    assert all(total == train + evaluation for _, train, evaluation, total in rows)


def test_batches_at_the_start_are_skipped():
    rows, _ = estimates(RuntimeEstimator("1ba", skip_batches=0), [4.0, 2.0])
    assert [train for _, train, *_ in rows] == [19 * 4.0, 18 * 3.0]

    rows, _ = estimates(RuntimeEstimator("1ba", skip_batches=2), [4.0, 2.0, 1.0])
    assert [(batch, train) for batch, train, *_ in rows] == [(3, 17.0)]


def test_evaluations_are_expected_as_often_as_before():
    rows, _ = estimates(RuntimeEstimator("1ba"), [1.0] * 12, {5: 10.0, 10: 14.0})
    val = {batch: evaluation for batch, _, evaluation, _ in rows}

    assert val[5] == 0.0
    assert val[6] == 3 * 10.0
    assert val[11] == 2 * 12.0


def test_epochs_of_unknown_length_have_an_estimate_after_the_first():
    state = State(linear(), max_duration="3ep")
    estimator = RuntimeEstimator("1ba", skip_batches=0)
    rows, state = estimates(estimator, [2.0] * 4, state=state)
    assert rows == []

    rows, _ = estimates(estimator, [2.0, 2.0], state=ended(estimator, state))
    assert [train for _, train, *_ in rows] == [14.0, 12.0]  # two epochs of 8 seconds


@pytest.mark.parametrize("duration", ["20ba", "80sp", "40sec"])
def test_units_of_durations(duration):
    state = State(linear(), max_duration=duration)
    rows, _ = estimates(RuntimeEstimator("4ba"), [2.0] * 8, state=state)

    assert [train for _, train, *_ in rows] == pytest.approx([32.0, 24.0])


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_resumed_estimate_is_that_of_the_whole_run(cut):
    seconds, evaluations = [1.0, 2.0, 3.0, 1.0, 2.0, 2.0, 5.0, 1.0, 1.0], {2: 4.0, 4: 8.0}
    whole, _ = estimates(RuntimeEstimator("1ba"), seconds, evaluations)
    before, after = RuntimeEstimator("1ba"), RuntimeEstimator("1ba")
    first, state = estimates(before, seconds[:cut], evaluations)
    after.load_state_dict(before.state_dict())
    after.fit_start(state, Logger())
    second, _ = estimates(after, seconds[cut:], evaluations, state=state)

    assert first + second == whole
