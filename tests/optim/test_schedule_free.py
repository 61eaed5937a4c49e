"""Schedule-free optimizers against the package `schedulefree`, and runs with them."""

import copy
from functools import partial

import pytest
import schedulefree
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable import optim
from composable.algorithms import SqueezeExcite
from composable.checkpoint import load_weights
from composable.optim import AdamWScheduleFree, SGDScheduleFree
from tests.support.data import batches
from tests.support.models import linear, mlp, same, weights
from tests.support.optimizers import parameters, stepped
from tests.support.runs import VISION, make_trainer, plain_loop, training_weights

SGD = partial(SGDScheduleFree, lr=0.5)
ADAMW = partial(AdamWScheduleFree, lr=0.05)
BOTH = pytest.mark.parametrize("make", [SGD, ADAMW], ids=["sgd", "adamw"])
OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"warmup_steps": 3},
    {"warmup_steps": 2, "r": 1.5, "weight_lr_power": 1.0, "weight_decay": 0.01},
    {"lr": 0.0},
]


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.01, "warmup_steps": 4}]


# --- numbers ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["SGDScheduleFree", "AdamWScheduleFree"])
def test_training_weights_and_average_have_the_bits_of_the_package(name, options, dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    mine = getattr(optim, name)(groups(ours), **options)
    package = getattr(schedulefree, name)(groups(theirs), **options)
    package.train()

    stepped(mine, ours, missing=None)
    stepped(package, theirs, missing=None)

    assert same(ours, theirs)
    mine.eval()
    package.eval()
    assert same(ours, theirs)
    assert not same(ours[:2], parameters(dtype)[:2]) or options == {"lr": 0.0}


def test_defaults_are_those_of_the_package():
    for ours, theirs in (
        (SGDScheduleFree, schedulefree.SGDScheduleFree),
        (AdamWScheduleFree, schedulefree.AdamWScheduleFree),
    ):
        package = theirs(parameters()).defaults
        own = ours(parameters()).defaults
        assert own == {**{k: package[k] for k in own}, "train_mode": True}


@pytest.mark.parametrize("name", ["SGDScheduleFree", "AdamWScheduleFree"])
def test_state_of_the_package_can_be_loaded(name):
    theirs, ours = parameters(), parameters()
    package = getattr(schedulefree, name)(theirs)
    package.train()
    stepped(package, theirs)
    package.eval()
    mine = getattr(optim, name)(ours)
    mine.load_state_dict(copy.deepcopy(package.state_dict()))
    for p, value in zip(ours, theirs, strict=True):
        p.data.copy_(value)

    mine.train()
    package.train()
    stepped(mine, ours, steps=2)
    stepped(package, theirs, steps=2)

    assert same(ours, theirs)


@given(st.integers(1, 8), st.floats(0.1, 1.0), st.booleans())
def test_average_is_the_weighted_mean_of_the_base_weights(steps, momentum, rising):
    (p,) = params = [nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    optimizer = SGDScheduleFree(params, lr=0.5, momentum=momentum, r=2.0 if rising else 0.0)
    generator, bases = torch.Generator().manual_seed(steps), []
    for _ in range(steps):
        p.grad = torch.randn(3, generator=generator, dtype=torch.float64)
        optimizer.step()
        bases.append(optimizer.state[p]["z"].clone())

    shares = torch.arange(1, steps + 1, dtype=torch.float64) ** (2.0 if rising else 0.0)

    mean = (torch.stack(bases) * shares[:, None]).sum(0) / shares.sum()
    assert_close(optimizer.averaged_weights()[p], mean)


@given(st.floats(0, 1), st.floats(0.1, 1.0), st.floats(0, 2))
@example(1.0, 0.9, 0.5)  # the step of the base optimizer
def test_step_keeps_the_three_equations(weight, momentum, lr):
    y, z, u = (
        {"w": torch.randn(5, generator=torch.Generator().manual_seed(i), dtype=torch.float64)}
        for i in range(3)
    )
    x = F.schedule_free_average(y, z, momentum=momentum)["w"]

    new_y, new_z = F.schedule_free_step(y, z, u, lr=lr, weight=weight, momentum=momentum)

    base = z["w"] - lr * u["w"]
    average = (1 - weight) * x + weight * base
    assert_close(new_z["w"], base)
    assert_close(new_y["w"], (1 - momentum) * base + momentum * average)
    found = F.schedule_free_average(new_y, new_z, momentum=momentum)["w"]
    assert_close(found, average)


def test_optimizer_takes_the_steps_of_the_function():
    params = parameters()
    optimizer = SGDScheduleFree(params, lr=0.25, momentum=0.8)
    stepped(optimizer, params, steps=2)
    y = {str(i): p.detach().clone() for i, p in enumerate(params)}
    z = {str(i): optimizer.state[p]["z"].clone() for i, p in enumerate(params)}
    for p in params:
        p.grad = torch.ones_like(p)

    optimizer.step()

    ones = {name: torch.ones_like(one) for name, one in y.items()}
    (group,) = optimizer.param_groups
    expected, _ = F.schedule_free_step(y, z, ones, lr=group["lr"], weight=1 / 3, momentum=0.8)
    for p, value in zip(params, expected.values(), strict=True):
        assert_close(p.detach(), value)


@pytest.mark.parametrize("start", [0, 1, 300])
def test_first_step_of_a_parameter_moves_it_by_the_learning_rate_whenever_it_comes(start):
    first, later = parameters(shapes=[(2,), (2,)])
    optimizer, before = AdamWScheduleFree([first, later], lr=0.01), later.detach().clone()
    for step in range(start + 1):
        first.grad = torch.ones(2, dtype=first.dtype)
        later.grad = torch.full_like(later, 4.0) if step == start else None
        optimizer.step()

    assert_close(before - later.detach(), torch.full_like(before, 0.01))
    assert optimizer.state[later]["step"] == 1
    optimizer.eval()
    assert_close(before - later.detach(), torch.full_like(before, 0.01))


# --- a loop of one's own ---


@BOTH
def test_evaluation_mode_changes_nothing_of_training(make):
    ours, others = parameters(), parameters()
    first, second = make(ours), make(others)
    for steps in (2, 1, 3):
        stepped(first, ours, steps)
        stepped(second, others, steps)
        averages = list(first.averaged_weights().values())
        first.eval()
        first.eval()
        assert same(ours, averages)
        assert same(list(first.averaged_weights().values()), averages)
        first.train()
        first.train()

    assert same(ours, others)
    assert not any("y" in state for state in first.state.values())


@BOTH
def test_gradients_stay_as_they_are(make):
    params = parameters()
    optimizer = make(params, weight_decay=0.5)
    for p in params:
        p.grad = torch.ones_like(p)

    optimizer.step()

    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in params)


def test_invalid_option_of_a_group_is_rejected():
    with pytest.raises(TypeError, match="param_group=3 must be a dictionary"):
        SGD(parameters()).add_param_group(3)


# --- in the Trainer ---


@BOTH
def test_trainer_trains_like_a_plain_loop_and_evaluates_like_the_package(make):
    model, data = mlp(), batches(24)
    package = {
        SGD: partial(schedulefree.SGDScheduleFree, lr=0.5),
        ADAMW: partial(schedulefree.AdamWScheduleFree, lr=0.05),
    }[make]
    optimizer = package(model.parameters())
    optimizer.train()
    plain_loop(model, data, optimizer, epochs=1)
    trained = weights(model)
    optimizer.eval()
    model.eval()
    with torch.no_grad():
        outputs = [model(x) for x, _ in data]
        losses = [cross_entropy(out, y) for out, (_, y) in zip(outputs, data, strict=True)]

    evaluates = {"eval_dataloader": data, "eval_interval": "1ba"}
    trainer = make_trainer(mlp(), data, optimizers=make, max_duration="1ep", **evaluates)
    state = trainer.fit()

    assert same(training_weights(trainer), trained)
    assert_close(state.metrics["eval"]["loss"], float(torch.stack(losses).mean()))
    assert same(trainer.predict([x for x, _ in data]), outputs)
    assert same(weights(trainer.state.model), weights(model))
    assert same(training_weights(trainer), trained)


@BOTH
def test_weights_for_inference_are_the_average(make, tmp_path):
    trainer = make_trainer(mlp(), optimizers=make)
    state = trainer.fit()
    trainer.save_checkpoint(tmp_path / "weights", weights_only=True)
    trainer.save_checkpoint(tmp_path / "run")
    average, whole = mlp(), mlp()

    load_weights(average, tmp_path / "weights")
    load_weights(whole, tmp_path / "run")

    assert same(weights(whole), weights(state.model))
    assert same(weights(average), weights(state.model))
    assert not same(weights(average), training_weights(trainer))


class Scaled(nn.Module):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, outputs, targets):
        return cross_entropy(outputs * self.scale, targets)


def test_parameters_of_the_loss_are_averaged_in_evaluations():
    loss, data = Scaled(), batches(8)
    trainer = make_trainer(mlp(), data, optimizers=ADAMW, loss_fn=loss, eval_dataloader=data)
    state = trainer.fit()
    with trainer._training():
        trained = loss.scale.item()

    found = trainer.eval()["eval"]["loss"]

    state.model.eval()
    assert loss.scale.item() != trained
    with torch.no_grad():
        expected = torch.stack([loss(state.model(x), y) for x, y in data]).mean()
    assert_close(found, float(expected))


def test_optimizer_in_evaluation_mode_is_switched_to_training():
    model = linear()
    optimizer = SGD(model.parameters())
    optimizer.eval()

    make_trainer(model, optimizers=optimizer).fit()

    assert optimizer.param_groups[0]["k"] == 6


def test_new_parameters_of_a_surgery_have_no_state():
    trainer = VISION.trainer(
        optimizers=ADAMW,
        algorithms=[SqueezeExcite(min_channels=1, latent_channels=2)],
        eval_dataloader=VISION.batches(),
    )

    state = trainer.fit()

    names = {
        name for name, p in state.model.named_parameters() if "z" in state.optimizers[0].state[p]
    }
    assert names == {name for name, _ in state.model.named_parameters()}
