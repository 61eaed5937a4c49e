"""Schedules that leave a run at rate 0, or whose warm-up is longer than the run."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import LambdaLR

from composable.optim import constant, cosine, linear, step
from tests.support.runs import make_trainer

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
