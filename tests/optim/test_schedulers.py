"""Schedules, and functions that make PyTorch schedulers, in runs."""

import copy
from functools import partial
from traceback import format_exception

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR

from composable import Timestamp
from composable.optim import constant, cosine, linear, per_group, step
from tests.support import models
from tests.support.runs import make_trainer


def decay(optimizer, gamma=0.5):
    return ExponentialLR(optimizer, gamma)


@pytest.mark.parametrize(
    "given",
    [
        decay,
        partial(decay, gamma=0.5),
        lambda opt: StepLR(opt, 1, gamma=0.5),
        partial(ExponentialLR, gamma=0.5),
    ],
)
def test_factory_is_called_with_the_optimizer(given):
    (optimizer,) = make_trainer(schedulers=given, max_duration="2ep").fit().optimizers
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda o: StepLR(o, 1), "schedulers contains .* name its first parameter 'optimizer'"),
        (lambda clock: "0.5", "schedulers contains .* returned '0.5' instead of a number"),
        ([lambda clock: 1.0, lambda clock: None], "schedulers contains .* returned None"),
        (per_group({"head": lambda clock: []}, default=cosine()), "schedulers contains"),
        (lambda clock: len(3), "has no len"),
    ],
)
def test_a_function_that_fails_in_fit_fails_in_the_constructor(given, error):
    def groups(parameters):
        return SGD([{"params": [*parameters], "name": "head"}], lr=0.1)

    with pytest.raises(TypeError, match=error) as caught:
        make_trainer(optimizers=groups, schedulers=given)
    assert "schedulers" in "".join(format_exception(caught.value))


def test_a_schedule_is_tried_without_a_trace():
    seen = []
    model = models.linear()
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.1), weight_decay=0.1)
    before = copy.deepcopy(optimizer.state_dict())

    make_trainer(
        model, optimizers=optimizer, schedulers=lambda clock: seen.append(clock.timestamp) or 0.5
    )

    assert seen == [Timestamp()]
    assert optimizer.state_dict() == before


by_batch = partial(LambdaLR, lr_lambda=lambda count: min(count / 10, 1.0))


def train(schedulers, **changes):
    make_trainer(schedulers=schedulers, check_effects=False, **changes).fit()


def test_scheduler_that_counts_batches_is_reported():
    with pytest.warns(UserWarning, match="LambdaLR steps after every epoch.*every_batch=True"):
        train(by_batch, max_duration="1ep")


@pytest.mark.parametrize(
    ("schedule", "duration"),
    [
        (cosine(warmup=100), "2ep"),
        (constant(warmup="100ba"), "2ep"),
        (step("1ep", warmup="3ep"), "6ba"),
        (constant(warmup="30sp"), "20sp"),
    ],
)
def test_warmup_longer_than_the_run_is_reported(schedule, duration):
    with pytest.warns(UserWarning, match=r"warmup='\w+' of \w+ is longer than the run"):
        train(schedule, max_duration=duration)


@pytest.mark.parametrize(
    "options",
    [
        {"schedulers": by_batch, "step_schedulers_every_batch": True},
        {"schedulers": partial(LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch))},
        {"schedulers": linear(warmup="3ba")},
        {"schedulers": constant(warmup="2ep")},
        {"schedulers": constant(warmup="1ep"), "max_duration": "20sp"},
        {"schedulers": lambda clock: 0.0},
        {"schedulers": None},
    ],
)
def test_other_runs_are_not_reported(options):
    train(**options)
