"""Callbacks that measure a run: what they log, when, and that they leave nothing behind."""

import io
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Evaluator, Event, State
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
    TimeSplit,
)
from composable.callbacks.time_split import _PARTS
from composable.core.intervals import check_interval, completes
from composable.loggers import InMemoryLogger
from composable.optim import cosine
from composable.testing import NoSync
from tests.support.campaign import each_once
from tests.support.data import batches, stream
from tests.support.models import linear, mlp, weights
from tests.support.observers import MONITORS, Raise
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

LOGGED = {
    OptimizerMonitor: "l2_norm/grad/global",
    LRMonitor: "lr",
    ActivationMonitor: "activations/max/_output.0",
}


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
@pytest.mark.parametrize("kind", LOGGED)
def test_batches_that_complete_an_interval_are_logged(kind, interval, due):
    _, memory = run(kind(interval), log_interval="100ba")

    assert logged(memory, LOGGED[kind]) == due


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
    options = {"eval_dataloader": batches(4), "loggers": InMemoryLogger()}
    failure = Raise(KeyError("disk"), event, 3)
    trainer = make_trainer(model, callbacks=[monitor, failure], **options)

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
    ("callback", "changes", "message"),
    [
        (RuntimeEstimator(), {"start": [1]}, "start is .*, and must be a list of 2 numbers or No"),
        (
            GradientNoise(),
            {"averages": 1.0},
            "averages is 1.0, and must be a tensor of two",
        ),
        (SpeedMonitor(), {"eval_seconds": Fraction(1)}, "eval_seconds is .*, and must be a number"),
        (SpeedMonitor(), {"best": 1.0}, r"was given .*, and its own has \['counted', 'eval_sec"),
        (EarlyStopper("loss"), {"window": []}, r"EarlyStopper was given the state \['best'.*'win"),
        *(
            (TimeSplit(), {"seconds": seconds}, "seconds is .*, and must be numbers of at least 0")
            for seconds in ({}, [], {"data": 1.0}, dict.fromkeys(_PARTS, "1"))
        ),
    ],
)
def test_a_state_of_something_else_is_refused(callback, changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        callback.load_state_dict({**callback.state_dict(), **changes})
