"""What only a real CUDA device can show."""

import inspect
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Algorithm, Callback, Event, Precision
from composable._support.tree import tensors_of
from composable.algorithms import EMA, BlurPool, GradientClipping, LabelSmoothing, MixUp
from composable.loggers import InMemoryLogger, JSONLinesLogger, ProgressBarLogger
from composable.optim import cosine
from composable.testing.properties import Subject, call, no_sync_on
from composable.utils.reproducibility import get_rng_state, load_rng_state
from tests.support.cases import all_function_cases
from tests.support.data import batches
from tests.support.models import CLASSES, mlp, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import adam, make_trainer


def model():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, CLASSES)
        )
    )


def images(device="cpu"):
    data = batches([4] * 6, features=36)
    return [(x.reshape(4, 1, 6, 6).to(device), y.to(device)) for x, y in data]


def algorithms():
    return [
        BlurPool(min_channels=1),
        EMA("2ba"),
        GradientClipping("norm", 0.5),
        LabelSmoothing(),
        MixUp(per_sample=True),
    ]


def trained(device):
    memory = InMemoryLogger()
    trainer = make_trainer(
        model(),
        device=device,
        train_dataloader=images(),
        eval_dataloader=images(),
        algorithms=algorithms(),
        schedulers=cosine(),
        loggers=[memory],
    )
    trainer.fit()
    return trainer, memory


def test_training_on_cuda_is_training_on_the_cpu_to_rounding():
    (ours, logged), (theirs, expected) = trained("cuda"), trained("cpu")

    on_cpu = {name: tensor.cpu() for name, tensor in weights(ours.state.model).items()}
    torch.testing.assert_close(on_cpu, weights(theirs.state.model), rtol=1e-3, atol=1e-4)
    assert logged.series("loss/train") == pytest.approx(expected.series("loss/train"), rel=1e-3)
    assert logged.latest == pytest.approx(expected.latest, rel=1e-3)


def test_batches_are_moved_and_predictions_come_back():
    watch = Watch(Event.BATCH_START, read=lambda s: (s.inputs.device.type, s.targets.device.type))
    trainer = make_trainer(model(), device="cuda", train_dataloader=images(), callbacks=[watch])
    trainer.fit()

    assert set(watch.values) == {("cuda", "cuda")}
    assert all(out.device.type == "cpu" for out in trainer.predict(images()))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp_bf16", "bf16"])
def test_no_step_waits_for_the_device(tmp_path, precision):
    class Guard(Callback):
        """An error for everything that waits, from the second batch to the last."""

        def batch_end(self, state, logger):
            torch.cuda.set_sync_debug_mode("error")

        def epoch_end(self, state, logger):
            torch.cuda.set_sync_debug_mode("default")

        def close(self):
            torch.cuda.set_sync_debug_mode("default")

    memory = InMemoryLogger()
    file = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=1000)
    bar = ProgressBarLogger(style="bar", stream=io.StringIO(), refresh_seconds=1000)
    make_trainer(
        model(),
        device="cuda",
        precision=precision,
        # On the device already: a copy from pageable memory synchronizes.
        train_dataloader=images("cuda"),
        max_duration="1ep",
        algorithms=algorithms(),
        schedulers=cosine(),
        callbacks=[Guard()],
        loggers=[file, memory, bar],
    ).fit()

    assert len(memory.series("loss/train")) == 6


@pytest.mark.parametrize("name", ["amp_fp16", "amp_bf16"])
def test_mixed_precision_equals_a_plain_loop_with_autocast_and_gradient_scaler(name):
    precision = Precision(name, initial_scale=2.0**30, growth_interval=2)
    data = batches([4] * 6)
    trainer = make_trainer(mlp(), data, device="cuda", precision=precision, optimizers=adam)
    trainer.fit()

    plain = mlp().cuda()
    optimizer, dtype = adam(plain.parameters()), precision.autocast_dtype
    scaler = torch.amp.GradScaler(
        "cuda", init_scale=2.0**30, growth_interval=2, enabled=precision.scales_loss
    )
    for inputs, targets in data * 2:
        with torch.autocast("cuda", dtype):
            loss = cross_entropy(plain(inputs.cuda()), targets.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    found, expected = weights(trainer.state.model), weights(plain)
    assert all(torch.equal(found[one], expected[one]) for one in expected)
    if precision.scales_loss:
        assert trainer._run.loss_scaler.scale.item() == scaler.get_scale() < 2.0**30


@pytest.mark.skipif(torch.version.cuda == "simulated", reason="a simulated GPU has no tf32")
def test_tf32_is_used_in_matrix_products_of_a_run_alone():
    left, right = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = (left.double() @ right.double()).float()

    def error():
        return (left @ right - exact).abs().max().item()

    plain = error()
    with Precision("tf32").backend_settings():
        rounded = error()

    assert rounded > 10 * plain
    assert error() == plain


DRAWING = [
    row
    for _, row in all_function_cases()
    if "generator" in inspect.signature(row.function).parameters
]
READ = {"augmix", "draw_augmix", "randaugment", "draw_randaugment"}  # as their docstrings say


@pytest.mark.parametrize(
    "row", [row for row in DRAWING if row.function.__name__ not in READ], ids=repr
)
def test_a_function_draws_on_the_device_without_waiting(row):
    no_sync_on(torch.device("cuda"), row.subject().inner(), generator="cuda")


@pytest.mark.parametrize("row", DRAWING, ids=repr)
def test_what_is_drawn_on_the_device_is_complete_on_the_cpu(row):
    given = row.valid()
    first, second = (call(row.function, given, device="cuda") for _ in range(2))

    first, second = ([one.cpu() for one in tensors_of(result)] for result in (first, second))
    assert all(map(torch.equal, first, second))


# That no function waits is a column of the matrix: property_tests/test_matrix.py.
@pytest.mark.parametrize("waits", [lambda x: x.sum().item(), torch.nonzero, lambda x: x[x > 0]])
def test_a_function_that_waits_is_refused(waits):
    asked = Subject(waits, make=lambda n: (torch.randn(n),), inputs=lambda n: torch.randn(n))

    with pytest.raises(RuntimeError, match="synchronizing"):
        no_sync_on(torch.device("cuda"), asked)
    assert torch.ones((), device="cuda").item() == 1


def test_the_generators_of_all_devices_are_restored():
    def drawn():
        return [torch.rand(2, device=f"cuda:{i}") for i in range(torch.cuda.device_count())]

    drawn()
    state = get_rng_state()
    first = drawn()
    load_rng_state(state)

    assert all(map(torch.equal, drawn(), first))


SURGERIES = [Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START, Event.EPOCH_START]


@pytest.mark.parametrize("event", SURGERIES)
def test_layers_that_a_surgery_builds_on_the_cpu_are_moved_to_the_device(event):
    class Extends(Algorithm):
        events = frozenset({event})
        reads = writes = frozenset({"model"})

        def apply(self, event, state):
            added = seeded(lambda: nn.BatchNorm1d(CLASSES))
            return state.evolve(model=nn.Sequential(*state.model, added))

    def trained(device):
        options = {"algorithms": [Extends()], "optimizers": adam, "max_duration": "1ep"}
        return make_trainer(mlp(), batches([4] * 6), device=device, **options).fit()

    on_cuda = trained("cuda").model

    assert {one.device.type for one in on_cuda.state_dict().values()} == {"cuda"}
    torch.testing.assert_close(
        {name: one.cpu() for name, one in on_cuda.state_dict().items()},
        dict(trained("cpu").model.state_dict()),
        rtol=1e-3,
        atol=1e-4,
    )
