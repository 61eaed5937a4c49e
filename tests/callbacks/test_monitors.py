"""Callbacks that measure a run: what they log, when, and that they leave nothing behind."""

import io
import json
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Evaluator, Event, State, Timestamp
from composable.algorithms import GradientClipping, MixUp
from composable.callbacks import (
    ActivationMonitor,
    CheckLoss,
    ComputeNorm,
    EarlyStopper,
    GradientNoise,
    LRMonitor,
    NaNMonitor,
    OptimizerMonitor,
    Printer,
    RuntimeEstimator,
    SpeedMonitor,
    ThresholdStopper,
    runtime_estimator,
)
from composable.callbacks._flops import peak_of
from composable.core.intervals import check_interval, completes
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from composable.optim import cosine
from composable.testing import NoSync
from tests.support.campaign import each_once
from tests.support.data import batches, stream
from tests.support.models import linear, mlp, weights
from tests.support.observers import MONITORS, Raise, Watch
from tests.support.runs import make_trainer

NAN, INF = float("nan"), float("inf")


def run(*callbacks, **options):
    """Train with callbacks; return the Trainer and the logger."""
    memory = InMemoryLogger()
    trainer = make_trainer(callbacks=list(callbacks), loggers=memory, **options)
    trainer.fit()
    return trainer, memory


def logged(memory, name):
    """Return the batches after which a metric was logged."""
    return [now.batch for now, metrics in memory.records if name in metrics]


# --- When


@pytest.mark.parametrize(
    ("interval", "due"),
    [
        ("1ba", [1, 2, 3, 4, 5, 6]),
        ("4ba", [4]),
        ("1ep", [3, 6]),
        ("0.5dur", [3, 6]),
        ("1/3dur", [2, 4, 6]),
        ("8sp", [3, 5]),  # known after the batch: so the next one is due
        (lambda state, event: state.timestamp.batch == 1, [2]),
        (None, []),
    ],
)
@pytest.mark.parametrize("kind", [OptimizerMonitor, LRMonitor, ActivationMonitor])
def test_batches_that_complete_an_interval_are_logged(kind, interval, due):
    name = {
        OptimizerMonitor: "l2_norm/grad/global",
        LRMonitor: "lr",
        ActivationMonitor: "activations/max/_output.0",
    }[kind]
    _, memory = run(kind(interval), log_interval="100ba")

    assert logged(memory, name) == due


def test_the_batch_after_an_epoch_of_unknown_length_is_due():
    _, memory = run(OptimizerMonitor("1ep"), loader=stream(12), max_duration="3ep")

    assert logged(memory, "l2_norm/grad/global") == [4, 7]


@pytest.mark.parametrize(("unit", "length"), [("ba", 7), ("sp", 28), ("sec", 7)])
def test_every_interval_is_due_once(unit, length):
    interval, state = check_interval("interval", f"{length}{unit}"), State(linear())
    due = []
    for _ in range(50):
        due.append(completes(interval, state))
        now = state.timestamp
        state = state.evolve(timestamp=now.next_batch(4, 0, 1.0), previous_timestamp=now)

    at = [i for i, one in enumerate(due) if one]
    assert at == [7 * k - (unit == "ba") for k in range(1, len(at) + 1)]
    assert len(at) == 7


# --- OptimizerMonitor, ComputeNorm


def norm(tensors):
    return torch.cat([one.detach().double().flatten() for one in tensors]).norm().item()


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norms_are_those_of_the_step(dtype, clipped):
    model, (inputs, targets) = mlp(dtype=dtype), batches(4, dtype=dtype)[0]
    before = [one.detach().clone() for one in model.parameters()]
    cross_entropy(model(inputs), targets).backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()

    trainer, memory = run(
        OptimizerMonitor("1ba", per_parameter=True),
        model=model,
        loader=[(inputs, targets)],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
        max_duration="1ba",
        algorithms=GradientClipping("norm", 1e-3) if clipped else [],
    )

    after, latest = [*trainer.state.model.parameters()], memory.latest
    moved = [a - b for a, b in zip(after, before, strict=True)]
    near = pytest.approx
    assert latest["l2_norm/grad/global"] == near(norm(gradients.values()), rel=1e-5)
    assert latest["l2_norm/param/global"] == near(norm(after), rel=1e-5)
    assert latest["l2_norm/update/global"] == near(norm(moved), rel=1e-2)
    for name, gradient in gradients.items():
        assert latest[f"l2_norm/grad/{name}"] == near(norm([gradient]), rel=1e-5)
    if clipped and dtype is not torch.bfloat16:
        assert latest["l2_norm/update/global"] == near(0.5e-3, rel=1e-3)


def test_norms_that_are_not_wanted_are_not_computed():
    _, memory = run(OptimizerMonitor("1ba", weights=False, updates=False), max_duration="1ba")
    assert [name for name in memory.latest if "l2" in name] == ["l2_norm/grad/global"]

    _, memory = run(ComputeNorm("1ba"), max_duration="1ba")
    assert {name for name in memory.latest if "l2" in name} == {
        f"l2_norm/{kind}/{name}"
        for kind in ("grad", "param")
        for name in ("global", "weight", "bias")
    }


def test_sparse_gradients_are_measured():
    model = nn.Sequential(nn.Embedding(7, 3, sparse=True))
    loader = [(torch.tensor([1, 2, 1]), torch.tensor([0, 1, 2]))]
    options = {"optimizers": torch.optim.SGD(model.parameters(), 0.1), "max_duration": "1ba"}
    dense = nn.Sequential(nn.Embedding.from_pretrained(model[0].weight.clone(), freeze=False))
    cross_entropy(dense(loader[0][0]), loader[0][1]).backward()

    _, memory = run(OptimizerMonitor("1ba"), model=model, loader=loader, **options)

    expected = norm([dense[0].weight.grad])
    assert memory.latest["l2_norm/grad/global"] == pytest.approx(expected, rel=1e-5)


class Reports(torch.optim.SGD):
    """An optimizer with metrics of its own."""

    def report_per_parameter_metrics(self, parameter, name, metrics):
        metrics[f"l2_norm/mine/{name}"] = parameter.grad.norm()
        return metrics


def test_metrics_of_optimizers_are_logged_for_their_own_parameters():
    model = mlp()
    optimizers = [
        Reports(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[3].parameters(), lr=0.1),
    ]
    options = {"model": model, "optimizers": optimizers, "max_duration": "2ba"}

    _, memory = run(OptimizerMonitor("1ba"), **options)
    mine = {name for name in memory.latest if "mine" in name}
    assert mine == {"l2_norm/mine/0.weight", "l2_norm/mine/0.bias"}

    del _
    _, memory = run(OptimizerMonitor("1ba", log_optimizer_metrics=False), **options)
    assert not any("mine" in name for name in memory.latest)


# --- LRMonitor


@pytest.mark.parametrize("log_interval", ["1ba", "2ba", "5ba"])
def test_learning_rates_are_logged_once_under_the_names_of_the_loop(log_interval):
    model = mlp()
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.01}]
    options = {"schedulers": cosine(), "algorithms": MixUp(0.2)}

    def rates(*callbacks, **more):
        optimizer = torch.optim.SGD(groups, lr=0.1)
        _, memory = run(*callbacks, model=model, optimizers=optimizer, **options, **more)
        return [memory.series(name) for name in ("lr", "lr/group1")]

    monitored = rates(LRMonitor(), log_interval=log_interval)

    assert monitored == rates(log_interval="1ba")
    assert len(monitored[0]) == 6


# --- NaNMonitor, CheckLoss


class Deferred(NaNMonitor):
    """Reads losses as it does on a GPU."""

    @staticmethod
    def _is_immediate(loss):
        return False


def losses(*values):
    """Return a loss function that returns these values, one after another."""
    iterator = iter(values)
    return lambda outputs, targets: outputs.sum() * 0 + next(iterator)


@pytest.mark.parametrize(
    ("callback", "value", "error"),
    [
        (NaNMonitor, NAN, "the loss of batch 1 is nan, and all weights are finite"),
        (NaNMonitor, INF, None),
        (CheckLoss, INF, "the loss of batch 1 is inf"),
        (CheckLoss, -INF, "the loss of batch 1 is -inf"),
        (CheckLoss, NAN, "the loss of batch 1 is nan"),
    ],
)
def test_a_loss_that_is_not_a_number_ends_the_run_before_the_step(callback, value, error):
    loss_fn = losses(1.0, value, 1.0)
    trainer = make_trainer(
        callbacks=callback(), loss_fn=loss_fn, nonfinite_loss="ignore", max_duration="3ba"
    )

    if error is None:
        assert trainer.fit().timestamp.batch == 3
    else:
        with pytest.raises(RuntimeError, match=error):
            trainer.fit()
        assert trainer.state.timestamp.batch == 1
        assert not any(one.isnan().any() for one in weights(trainer.state.model).values())


def test_weights_that_are_not_finite_are_named():
    model = mlp()
    nn.init.constant_(model[3].bias, NAN)

    with pytest.raises(RuntimeError, match=r"weights 3\.bias are not finite: lower the learning"):
        run(NaNMonitor(), model=model, nonfinite_loss="ignore")


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 80),  # at the end
        ({"eval_dataloader": batches(4), "eval_interval": "10ba"}, 10),
        ({"save_interval": "20ba"}, 20),
    ],
)
def test_losses_that_are_read_later_are_read_before_they_matter(options, batch, tmp_path):
    values = [1.0] * 3 + [NAN] + [1.0] * 500
    if "save_interval" in options:
        options["save_folder"] = tmp_path / "run"
    callback = Deferred()
    loader = [batches(4)[0]] * 80
    trainer = make_trainer(
        loader=loader,
        loss_fn=losses(*values),
        nonfinite_loss="ignore",
        max_duration="80ba",
        callbacks=callback,
        **options,
    )

    with pytest.raises(RuntimeError, match="the loss of batch 3 is nan"):
        trainer.fit()

    assert trainer.state.timestamp.batch == min(batch, 63)
    assert callback._pending == []


# --- ThresholdStopper, EarlyStopper


def show(stopper, values, name="loss"):
    """Show the results of evaluations to a stopper; return how many it saw."""
    state, logger = State(linear(), epoch_length=3, max_duration="100ep"), Logger()
    for i, value in enumerate(values, 1):
        stopper.eval_before_all(state, logger)
        state = state.evolve(timestamp=Timestamp(batch=i), metrics={"eval": {name: value}})
        if stopper.eval_after_all(state, logger) is not None:
            return i
    return None


@pytest.mark.parametrize(
    ("name", "options", "values", "stop"),
    [
        ("loss", {}, [0.9, 0.6, 0.5, 0.4], 3),
        ("accuracy", {}, [0.4, NAN, 0.5, 0.4], 3),
        ("accuracy", {"mode": "min"}, [0.6, 0.4], 2),
        ("loss", {}, [NAN, 0.6], None),
    ],
)
def test_reaching_the_threshold_stops_training(name, options, values, stop):
    assert show(ThresholdStopper(name, 0.5, **options), values, name) == stop


def test_threshold_of_a_run():
    stopper = ThresholdStopper("eval/loss", 1e9)
    trainer, _ = run(stopper, eval_dataloader=batches(4), max_duration="9ep")
    assert trainer.state.timestamp.epoch == 1

    with pytest.raises(ValueError, match="monitor='test/loss' must be a result of an evaluation"):
        run(ThresholdStopper("test/loss", 0.0), eval_dataloader=batches(4))


@pytest.mark.parametrize(("patience", "stop"), [("0eval", 3), ("1eval", 4), ("3eval", 6)])
def test_patience_may_be_a_number_of_evaluations(patience, stop):
    values = [3.0, 2.0, 2.0, 2.5, 2.0, 2.0, 2.0]

    assert show(EarlyStopper("loss", patience=patience), values) == stop


@pytest.mark.parametrize("cut", range(1, 5))
def test_patience_in_evaluations_survives_a_resume(cut):
    values, stoppers = [3.0, 2.0, 2.5, 2.5, 2.5], [EarlyStopper("loss", patience="2eval")] * 1
    first = stoppers[0]
    assert show(first, values[:cut]) is None
    second = EarlyStopper("loss", patience="2eval")
    second.load_state_dict(first.state_dict())

    assert show(second, values[cut:]) == 5 - cut


# --- ActivationMonitor


class Passes(nn.Module):
    """Returns its input and twice its input."""

    def forward(self, x):
        return x, 2 * x


def test_statistics_of_activations():
    x = torch.tensor([[3.0, -4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3))

    _, memory = run(
        ActivationMonitor("1ba", inputs=True),
        model=model,
        loader=[(x, torch.tensor([0, 1]))],
        max_duration="1ba",
    )

    found = {n: v for n, v in memory.latest.items() if n.startswith("activations")}
    row = x[0] - x[0].mean()
    assert found["activations/l2_norm/0_output.0"] == 2.5
    assert found["activations/average/0_output.0"] == -0.125
    assert found["activations/max/0_output.0"] == 3.0
    assert found["activations/kurtosis/0_output.0"] == pytest.approx(
        float((row**4).mean() / (row**2).mean() ** 2)
    )
    assert found["activations/l2_norm/1_input.0"] == 2.5
    assert len(found) == 2 * 2 * 4


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (None, {"0", "1", "2", "3"}),
        (["0", "3"], {"0", "3"}),
        (["[12]"], {"1", "2"}),
        (["x"], set()),
    ],
)
def test_modules_are_chosen_by_patterns(modules, names):
    _, memory = run(ActivationMonitor("1ba", modules=modules), model=mlp(), max_duration="1ba")

    found = {n.split("/")[2] for n in memory.latest if n.startswith("activations/max")}
    assert found == {f"{name}_output.0" for name in names}


def hooks(model):
    return [len(one._forward_hooks) for one in model.modules()]


def test_hooks_are_there_only_in_forward_passes_that_are_logged():
    model, seen = mlp(), []

    def watch(event, state, logger):
        if event in (Event.BEFORE_FORWARD, Event.AFTER_FORWARD):
            seen.append((state.timestamp.batch, event is Event.BEFORE_FORWARD, sum(hooks(model))))

    run(ActivationMonitor("2ba"), watch, model=model, max_duration="3ba", grad_accum=2)

    present = [(batch, before) for batch, before, count in seen if count]
    assert present == [(1, True)]  # the first microbatch of the second batch
    assert sum(hooks(model)) == 0


FAILING = [Event.BEFORE_FORWARD, Event.AFTER_LOSS, Event.AFTER_OPTIMIZER_STEP, Event.EVAL_START]


@pytest.mark.parametrize(("name", "event"), each_once(list(MONITORS), FAILING))
@pytest.mark.filterwarnings("ignore:GradientNoise measured nothing")
def test_a_run_that_fails_leaves_nothing_behind(name, event):
    model, monitor = mlp(), MONITORS[name]()
    failure = Raise(KeyError("disk"), event, 3)
    trainer = make_trainer(model, callbacks=[monitor, failure], eval_dataloader=batches(4))

    with pytest.raises(KeyError, match="disk"):
        trainer.fit()
    assert sum(hooks(model)) == 0
    held = [one for one in vars(monitor).values() if isinstance(one, (State, nn.Module))]
    assert not held
    trainer.fit()
    assert sum(hooks(model)) == 0


# --- GradientNoise


class Dot(nn.Module):
    """The gradient of each example is the example."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x @ self.weight


def noisy_examples(count, dim=3):
    generator = torch.Generator().manual_seed(0)
    return torch.tensor([1.0, 2.0, 3.0]) + 2 * torch.randn(count, dim, generator=generator)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"grad_accum": 4}, marks=pytest.mark.campaign),
        {"microbatch_size": 3},  # of 8 examples: 3, 3 and 2
        {"accumulate_batches": 2},
        {"grad_accum": 4, "precision": "amp_fp16"},
    ],
    ids=str,
)
def test_noise_scale_is_the_ratio_of_variance_and_squared_mean(options):
    x = noisy_examples(8 * 500)
    loader = [(one, one[:, 0]) for one in x.split(8 // options.get("accumulate_batches", 1))]

    _, memory = run(
        GradientNoise("1ba", smoothing=0.999),
        model=Dot(3),
        loader=loader,
        loss_fn=lambda outputs, targets: outputs.float().mean(),
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        max_duration="1ep",
        log_interval="1ep",
        check_effects=False,
        **options,
    )

    latest = memory.latest
    assert latest["gradient_noise/variance"] == pytest.approx(12, rel=0.15)
    assert latest["gradient_noise/squared_norm"] == pytest.approx(14, rel=0.05)
    assert latest["gradient_noise/scale"] == pytest.approx(12 / 14, rel=0.15)


def test_one_measurement_is_the_formula_of_the_paper():
    x = noisy_examples(6)
    small, large = x[:2].mean(0).square().sum(), x.mean(0).square().sum()
    variance = (small - large) / (1 / 2 - 1 / 6)
    squared = (6 * large - 2 * small) / 4

    _, memory = run(
        GradientNoise("1ba"),
        model=Dot(3),
        loader=[(x, x[:, 0])],
        loss_fn=lambda outputs, targets: outputs.mean(),
        max_duration="1ba",
        grad_accum=3,
    )

    assert memory.latest["gradient_noise/variance"] == pytest.approx(variance.item(), rel=1e-5)
    assert memory.latest["gradient_noise/squared_norm"] == pytest.approx(squared.item(), rel=1e-5)


def test_noise_without_microbatches_is_a_warning():
    with pytest.warns(UserWarning, match="GradientNoise measured nothing.* pass grad_accum=2"):
        run(GradientNoise("1ba"))


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


# --- SpeedMonitor


def flops(model=None, loader=None, **options):
    """Return the operations of a batch that are logged, and the log."""
    monitor = SpeedMonitor(1, **options)
    _, memory = run(monitor, model=model, loader=loader or batches(12), max_duration="3ba")
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


def test_operations_of_the_run_are_in_the_state_and_kept_across_a_resume(tmp_path):
    monitor = SpeedMonitor(flops_per_batch=100.0)
    make_trainer(callbacks=monitor, save_folder=tmp_path, save_interval="1ba").fit()
    watch = Watch(Event.BATCH_END, read=lambda state: state.flops)

    resumed = make_trainer(callbacks=[watch, monitor], load_path=tmp_path / "ep1-ba4")
    saved = resumed.state.flops
    state = resumed.fit()

    assert [saved, *watch.values] == [400.0, 500.0, 600.0]
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
    _, memory = run(SpeedMonitor(), eval_dataloader=batches(4), eval_interval="2ba")

    train, val, total = (memory.series(f"time/{name}") for name in ("train", "val", "total"))
    assert len(train) == 6
    assert val[0] == val[1] == 0.0 < val[2] == val[3] < val[4]
    assert [a + b for a, b in zip(train, val, strict=True)] == total


# --- Printer


def test_lines_of_progress():
    stream = io.StringIO()
    run(Printer("2ba", stream=stream), eval_dataloader=batches(4), max_duration="4ba")

    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "epoch 0, batch 2 (50 %)",
        "epoch 1, batch 3 (75 %)",
        "epoch 1, batch 4 (100 %)",
        "epoch 1, batch 4 (100 %)",
    ]
    assert "loss " in lines[0]
    assert " batches/s, 0:00:00 left" in lines[0]
    assert lines[1].partition(": ")[2].startswith("eval/loss ")


def test_only_new_results_are_printed():
    stream = io.StringIO()
    evaluators = [
        Evaluator("often", batches(4), eval_interval="1ba"),
        Evaluator("last", batches(4), eval_interval="3ba"),
    ]
    run(Printer(None, stream=stream), eval_dataloader=evaluators, max_duration="4ba")

    found = [
        line.count("often/loss") + 10 * line.count("last/loss")
        for line in stream.getvalue().splitlines()
    ]
    assert found == [1, 1, 11, 1, 10]


def test_lines_of_a_run_of_unknown_length_of_epoch():
    stream_, out = stream(12), io.StringIO()
    run(Printer("1ba", stream=out), loader=stream_, max_duration="1ep")

    assert len(out.getvalue().splitlines()) == 3


# --- All


WAITING = {"loss", "infinite loss", "lines", "samples"}
"""Those that read values of the device at once."""


@pytest.mark.parametrize("name", sorted(MONITORS.keys() - WAITING))
def test_measuring_does_not_wait_for_the_device(name):
    monitor = MONITORS[name]()
    if isinstance(monitor, SpeedMonitor):
        monitor = SpeedMonitor(2, flops_per_batch=10.0)  # counting happens once
    trainer = make_trainer(
        callbacks=monitor, loggers=InMemoryLogger(), grad_accum=2, nonfinite_loss="ignore"
    )

    trainer.fit(duration="1ba")  # targets of the first batch are read once
    with NoSync():
        trainer.fit(duration="5ba")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RuntimeEstimator().load_state_dict(
                {**RuntimeEstimator().state_dict(), "start": [1]}
            ),
            "start is .*, and must be a list of 2 numbers or None",
        ),
        (
            lambda: GradientNoise().load_state_dict({"averages": 1.0, "count": 1}),
            "averages is 1.0, and must be a tensor of two numbers or None",
        ),
        (
            lambda: SpeedMonitor().load_state_dict(
                {**SpeedMonitor().state_dict(), "eval_seconds": Fraction(1)}
            ),
            "eval_seconds is .*, and must be a number",
        ),
    ],
)
def test_rejects_invalid_arguments_and_states(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
