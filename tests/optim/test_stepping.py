"""`fast_step` gives the bits and has the effects of `optimizer.step()`."""

import functools
from functools import partial
from types import MethodType

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile

from composable.optim.stepping import fast_step
from tests.support.models import linear, same, weights

OPTIMIZERS = [
    partial(SGD, lr=0.1),
    partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    partial(SGD, lr=0.1, fused=True),
    *(partial(Adam, lr=0.1, **how) for how in ({}, {"foreach": True}, {"fused": True})),
    *(partial(AdamW, lr=0.1, amsgrad=True, **how) for how in ({"foreach": False}, {"fused": True})),
    partial(RMSprop, lr=0.1, momentum=0.9),
]


def with_gradients(build):
    """Build an optimizer of a linear model with the gradients of a batch, and the model."""
    model = linear()
    optimizer = build(model.parameters())
    model(torch.ones(2, 4)).square().sum().backward()
    return optimizer, model


def assert_stepped(model, build, times=1):
    """Assert that a model has the bits after some steps of the optimizer itself."""
    plain, expected = with_gradients(build)
    for _ in range(times):
        plain.step()
    assert same(weights(model), weights(expected))


@pytest.fixture
def ranges(monkeypatch):
    """Return the names of the ranges that are recorded for a profiler."""
    names, real = [], torch.autograd.profiler.record_function

    def record(name, *args):
        names.append(name)
        return real(name, *args)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    return names


# --- the arithmetic ---


@pytest.mark.parametrize("build", OPTIMIZERS)
def test_gives_the_bits_of_step(build, ranges):
    (fast, model), (plain, expected) = with_gradients(build), with_gradients(build)
    step = fast_step(fast)

    for _ in range(3):
        step()
    assert ranges == []  # it was the fast way
    for _ in range(3):
        plain.step()

    assert same(weights(model), weights(expected))
    for one, other in zip(fast.state.values(), plain.state.values(), strict=True):
        assert one.keys() == other.keys()
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_calls_the_step_of_a_subclass(ranges):
    class Twice(SGD):
        def step(self, closure=None):
            super().step(closure)
            super().step(closure)

    build = partial(Twice, lr=0.1)
    optimizer, model = with_gradients(build)
    fast_step(optimizer)()

    assert_stepped(model, build)


# --- hooks ---

REGISTER = {
    "pre": lambda optimizer, hook: optimizer.register_step_pre_hook(hook),
    "post": lambda optimizer, hook: optimizer.register_step_post_hook(hook),
    "global pre": lambda optimizer, hook: register_optimizer_step_pre_hook(hook),
    "global post": lambda optimizer, hook: register_optimizer_step_post_hook(hook),
}
HOOKS = pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
WHEN = pytest.mark.parametrize("when", ["before", "after"])


def both(when, change, optimizer):
    """Make the fast step after or before a change of the optimizer; return both results."""
    if when == "before":
        return change(), fast_step(optimizer)
    return (fast_step(optimizer), change())[::-1]


@HOOKS
@WHEN
def test_calls_a_hook_whenever_it_was_registered(register, when):
    (optimizer, model), calls = with_gradients(OPTIMIZERS[0]), []

    def hook(called, args, kwargs):
        calls.append((called, len(args), kwargs))

    handle, step = both(when, lambda: register(optimizer, hook), optimizer)
    try:
        step()
    finally:
        handle.remove()
    step()

    assert calls == [(optimizer, 1, {})]
    assert_stepped(model, OPTIMIZERS[0], times=2)


# --- schedulers, profilers, and a step that was replaced ---


@WHEN
def test_a_torch_scheduler_notices_the_step(when, ranges):
    optimizer, model = with_gradients(OPTIMIZERS[0])
    scheduler, step = both(when, lambda: StepLR(optimizer, 1), optimizer)
    ranges.clear()

    step()
    scheduler.step()  # "Detected call of `lr_scheduler.step()` before"

    assert optimizer._opt_called
    assert bool(ranges) is (when == "after")
    assert_stepped(model, OPTIMIZERS[0])


def test_a_profiler_sees_the_range_of_the_step():
    optimizer, _ = with_gradients(OPTIMIZERS[0])
    step = fast_step(optimizer)
    step()

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()

    assert [e.count for e in profiled.key_averages() if e.key == "Optimizer.step#SGD.step"] == [1]


@pytest.mark.parametrize("bind", [MethodType, lambda function, one: partial(function, one)])
@WHEN
@pytest.mark.parametrize("scheduled", [False, True])
def test_calls_a_step_that_is_replaced_on_the_instance(bind, when, scheduled):
    (optimizer, model), calls = with_gradients(OPTIMIZERS[0]), []
    before = weights(model)
    if scheduled:
        StepLR(optimizer, 1)

    @functools.wraps(optimizer.step.__func__ if not scheduled else optimizer.step)
    def replaced(self, *args):
        calls.append(self)

    both(when, lambda: setattr(optimizer, "step", bind(replaced, optimizer)), optimizer)[1]()

    assert calls == [optimizer]
    assert same(weights(model), before)


# torch runs `_optimizer_step_code` after a step.
@pytest.mark.parametrize(
    ("when", "name", "moves"),
    [("before", "step", 0), ("after", "step", 0), ("before", "_optimizer_step_code", 1)],
)
def test_calls_a_method_that_is_replaced_on_the_class(when, name, moves, monkeypatch):
    class Mine(SGD):
        pass

    (optimizer, model), calls = with_gradients(partial(Mine, lr=0.1)), []
    before = weights(model)

    def replace():
        monkeypatch.setattr(SGD, name, lambda self: calls.append(self))

    both(when, replace, optimizer)[1]()

    assert calls == [optimizer]
    assert same(weights(model), before) is not bool(moves)


def test_step_of_an_optimizer_that_needs_a_closure_is_an_error():
    step = fast_step(LBFGS(linear().parameters()))

    with pytest.raises(TypeError, match="closure"):
        step()


def test_an_optimizer_of_accelerate_is_stepped_by_its_own_step():
    optimizers = pytest.importorskip("accelerate.optimizer")
    pytest.importorskip("accelerate").Accelerator(cpu=True)
    optimizer, model = with_gradients(OPTIMIZERS[0])
    wrapped, calls = optimizers.AcceleratedOptimizer(optimizer), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    step = fast_step(wrapped)

    step()
    wrapped.gradient_state._set_sync_gradients(False)  # accumulating: its step does nothing
    try:
        step()
    finally:
        wrapped.gradient_state._set_sync_gradients(True)

    assert calls == [1]
    assert isinstance(model, nn.Module)
