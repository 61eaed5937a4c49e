"""Loops of Accelerate and of Fabric that save and resume."""

from contextlib import suppress

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from composable.algorithms import EMA, GradientClipping, MixUp
from composable.integrations import adapt_loop
from composable.integrations.extras import accelerate_parts, fabric_parts
from tests.support.data import NoisyExamples
from tests.support.own_run import KilledError, equal

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
OPTIONS = {
    "no": ("fp32", "32-true"),
    "bf16": ("amp_bf16", "bf16-mixed"),
}
"""The precisions of Accelerate, with those of the adapter and of Fabric."""


def reset():
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def _other_tests_find_no_state():
    yield
    reset()


def build(precision):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    t = adapt_loop(
        [MixUp(), EMA("2ba"), GradientClipping("norm", 1.0)], model, optimizer,
        loss_fn=cross_entropy, seed=3, precision=OPTIONS[precision][0],
    )  # fmt: skip
    loader = DataLoader(NoisyExamples(26), 4, shuffle=True)
    return t, optimizer, loader, LambdaLR(optimizer, lambda step: 0.9**step)


def by_accelerate(folder, precision, stop=None):
    reset()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    t, optimizer, loader, scheduler = build(precision)
    model, wrapped, loader, rate = accelerator.prepare(t.model, optimizer, loader, scheduler)
    t.extra.update(accelerate_parts(accelerator))
    t.resume(folder)
    for count, (_, (inputs, _)) in enumerate(epochs(t, loader)):
        if count == stop:
            raise KilledError
        with accelerator.accumulate(model):
            accelerator.backward(t.loss(model(inputs)))
            wrapped.step()
            rate.step()
            wrapped.zero_grad()
        if accelerator.sync_gradients:
            t.save(folder)
    return outcome(t, optimizer)


def by_fabric(folder, precision, stop=None):
    fabric = Fabric(accelerator="cpu", devices=1, precision=OPTIONS[precision][1])
    t, optimizer, loader, scheduler = build(precision)
    model, wrapped = fabric.setup(t.model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    t.extra.update(fabric_parts(fabric), scheduler=scheduler)
    t.resume(folder)
    for count, (i, (inputs, _)) in enumerate(epochs(t, loader)):
        if count == stop:
            raise KilledError
        accumulates = t.state.timestamp.batch_in_epoch < 3 and i % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulates):
            fabric.backward(t.loss(model(inputs)) / 2)
        if not accumulates:
            wrapped.step()
            scheduler.step()
            wrapped.zero_grad()
            t.save(folder)
    return outcome(t, optimizer)


def epochs(t, loader):
    """Iterate over three epochs of four steps, of two batches each but the last."""
    for _ in range(t.state.timestamp.epoch, 3):
        yield from enumerate(t.epoch(loader, accumulate_batches=2))


def outcome(t, optimizer):
    with t.evaluating() as model:
        evaluated = [one.clone() for one in model.parameters()]
    own = [one.detach().clone() for one in t.model.parameters()]
    return [own, evaluated, optimizer.state_dict(), t.state.timestamp.batch]


@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize("train", [by_accelerate, by_fabric])
def test_a_loop_of_a_library_continues_with_the_same_bits(tmp_path, train, precision):
    for stop in (1, 4, 7):
        with suppress(KilledError):
            train(tmp_path / "a", precision, stop)

    assert equal(train(tmp_path / "a", precision), train(tmp_path / "b", precision))
