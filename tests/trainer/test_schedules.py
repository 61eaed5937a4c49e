"""Schedules against torch's schedulers, and the learning rates of a run.

Their formulas are in property_tests/test_schedules.py.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import StepLR

from composable import Clock, Evaluator, Event, Time, Timestamp
from composable.loggers import InMemoryLogger
from composable.optim import (
    Schedule,
    constant,
    cosine,
    cosine_restarts,
    exponential,
    linear,
    multi_step,
    one_minus_sqrt,
    per_group,
    polynomial,
    scale_schedule,
    step,
    warmup_stable_decay,
)
from tests.support.data import Stream, batches
from tests.support.models import CLASSES
from tests.support.models import linear as linear_model
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer, sgd

STEPS = 12


def torch_values(build):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = build(optimizer)
    rates = []
    for _ in range(STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            linear(1.0, 0.0),
            partial(lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.0, total_iters=STEPS),
        ),
        (
            linear(0.25, 0.75, duration="8ba"),
            partial(lr_scheduler.LinearLR, start_factor=0.25, end_factor=0.75, total_iters=8),
        ),
        (
            linear(0.5, 1.0, duration="0.5dur"),
            partial(lr_scheduler.LinearLR, start_factor=0.5, end_factor=1.0, total_iters=6),
        ),
        (cosine(), partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS)),
        (cosine(0.1), partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS, eta_min=0.1)),
        (step("3ba", 0.5), partial(lr_scheduler.StepLR, step_size=3, gamma=0.5)),
        (step("0.25dur"), partial(lr_scheduler.StepLR, step_size=3, gamma=0.1)),
        (
            multi_step(["0.25dur", "8ba", "8ba"], 0.5),
            partial(lr_scheduler.MultiStepLR, milestones=[3, 8, 8], gamma=0.5),
        ),
        (exponential(0.9, "1ba"), partial(lr_scheduler.ExponentialLR, gamma=0.9)),
        (polynomial(2.0), partial(lr_scheduler.PolynomialLR, total_iters=STEPS, power=2.0)),
        (
            cosine_restarts("3ba", alpha_f=0.1),
            partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3, eta_min=0.1),
        ),
        (
            cosine_restarts("1ba", 2),
            partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=1, T_mult=2),
        ),
        (
            cosine_restarts("2ba", 3),
            partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2, T_mult=3),
        ),
        (
            constant(0.5, duration="4ba"),
            partial(lr_scheduler.ConstantLR, factor=0.5, total_iters=4),
        ),
        (constant(0.5), partial(lr_scheduler.ConstantLR, factor=0.5, total_iters=100)),
        (
            linear(1.0, 1.0, warmup="4ba"),
            partial(lr_scheduler.LambdaLR, lr_lambda=lambda k: min(k / 4, 1.0)),
        ),
    ],
)
def test_values_are_those_of_torch(ours, theirs):
    clocks = [Clock.at(batch=k, max_duration=f"{STEPS}ba") for k in range(STEPS + 1)]

    assert [ours(clock) for clock in clocks] == pytest.approx(torch_values(theirs), abs=1e-7)


def test_schedules_are_values():
    assert cosine(0.1) == cosine(0.1, duration="1dur")
    assert cosine(0.1) != cosine(0.2)
    assert isinstance(step("1ep"), Schedule)
    assert linear(warmup=2).warmup == Time.parse("2ep")


class Mine(Schedule):
    """A schedule without its rule."""


IN_EPOCHS = Timestamp(batch=2, batch_in_epoch=2)


@pytest.mark.parametrize(
    "build", [constant, linear, cosine, partial(step, "2ep"), partial(polynomial, 2)]
)
@pytest.mark.parametrize(("warmup", "whole"), [("1ep", "9ba"), ("1ep", "3ep"), ("0.5dur", "3ep")])
def test_warmup_in_epochs_of_unknown_length_is_an_error(build, warmup, whole):
    with pytest.raises(ValueError, match=f"warmup='{warmup}' cannot be measured in epochs of unkn"):
        build(warmup=warmup)(Clock(IN_EPOCHS, whole))


@pytest.mark.parametrize(
    ("schedule", "clock", "message"),
    [
        (constant(warmup="1iter"), Clock(Timestamp(), "9ba", 3), "'1iter' cannot be measured"),
        (linear(warmup="2ba"), Clock(Timestamp(batch=7), "10ep"), "'2ba' and duration='1dur'"),
        (cosine(), Clock(Timestamp()), "the run has no max_duration"),
        (
            Mine(),
            Clock.at(batch=0, max_duration="1ba"),
            r"Mine must implement after_warmup\(clock\)",
        ),
    ],
)
def test_what_a_clock_cannot_measure_is_an_error(schedule, clock, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        schedule(clock)


def test_warmup_that_needs_no_length_of_an_epoch():
    assert constant(warmup="0ep")(Clock(Timestamp(), "3ep")) == 1.0
    make_trainer(train_dataloader=Stream(batches(12)), schedulers=constant(warmup="2ba")).fit()


# --- in a run ---


def rates_of(**changes):
    memory = InMemoryLogger()
    make_trainer(loggers=[memory], **changes).fit()
    return memory.series("lr")


def test_torch_scheduler_may_be_an_instance_or_a_factory():
    halving = partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)
    model = linear_model()
    optimizer = sgd(model.parameters())

    rates = rates_of(model=model, optimizers=optimizer, schedulers=halving(optimizer))

    assert rates == rates_of(schedulers=halving) == [0.1] * 3 + [0.05] * 3


class Constant(nn.Module):
    """A model whose loss does not change, so that a plateau is certain."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, CLASSES))

    def forward(self, inputs):
        return (inputs @ self.weight) * 0.0


RARE = Evaluator("rare", batches([4]), eval_interval="2ep")
OFTEN = Evaluator("often", batches([4]), eval_interval="1ep")


@pytest.mark.parametrize(
    ("evaluators", "max_duration", "batches_before"),
    [(OFTEN, "3ep", 6), ([RARE, OFTEN], "5ep", 12)],  # the second evaluation is no better
)
def test_plateau_scheduler_follows_the_loss_of_the_first_evaluator(
    evaluators, max_duration, batches_before
):
    rates = rates_of(
        model=Constant(),
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        schedulers=partial(lr_scheduler.ReduceLROnPlateau, factor=0.1, patience=0),
        eval_dataloader=evaluators,
        max_duration=max_duration,
    )

    assert rates == pytest.approx([1.0] * batches_before + [0.1] * 3)


def test_learning_rate_that_is_a_tensor_is_set_in_place():
    rate = torch.tensor(0.1)

    logged = rates_of(
        optimizers=lambda parameters: torch.optim.Adam(parameters, lr=rate),
        schedulers=lambda clock: clock.timestamp.batch,
    )

    assert rate.item() == pytest.approx(0.5)  # a compiled step reads the same tensor
    assert logged == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_optimizers_of_an_algorithm_follow_the_schedule():
    def swap(event, state):
        if event is not Event.FIT_START:
            return state
        return state.evolve(optimizers=(sgd(state.model.parameters()),))

    assert rates_of(algorithms=swap, schedulers=lambda clock: 0.5) == [0.05] * 6


def test_rate_logged_at_the_end_of_an_epoch_is_that_of_its_last_batch():
    logged = rates_of(
        train_dataloader=Stream(batches(12)),
        schedulers=lambda clock: 0.5**clock.timestamp.batch,
        log_interval="1ep",
    )

    assert logged == [0.1 * 0.5**2, 0.1 * 0.5**5]


@pytest.mark.parametrize(
    "schedule",
    [
        linear(warmup="12sp"),
        cosine(warmup="12sp"),
        cosine(warmup="12sp", duration="6ba"),
        polynomial(2.0, warmup="12sp"),
        one_minus_sqrt(warmup="12sp"),
        warmup_stable_decay("2ba", warmup="12sp"),
        warmup_stable_decay("2sp", warmup="2ba"),
        warmup_stable_decay("2sp"),
        constant(0.5, duration="6ba", warmup="12sp"),
        exponential(0.5, "2ba", warmup="12sp"),
        cosine_restarts("2ba", warmup="12sp"),
        scale_schedule(cosine(warmup="12sp"), 0.5),
        per_group({}, default=cosine(warmup="12sp")),
    ],
    ids=repr,
)
def test_units_that_cannot_be_related_are_refused_by_the_constructor(schedule):
    with pytest.raises(ValueError, match=r"'\d+sp'.*cannot be related in this run"):
        make_trainer(max_duration="8ba", schedulers=schedule)


@pytest.mark.parametrize(
    ("schedulers", "options", "count"),
    [
        (2, {"step_schedulers_every_batch": True}, 12),
        (2, {}, 4),
        (1, {}, 2),
        ([cosine(), constant(0.5)], {}, 6),
    ],
)
def test_hooks_fire_for_each_scheduler_right_before_and_after_its_step(schedulers, options, count):
    model = linear_model()
    optimizers = [torch.optim.SGD([one], lr=1.0) for one in model.parameters()]
    if isinstance(schedulers, int):
        schedulers = [lr_scheduler.ExponentialLR(one, 0.5) for one in (optimizers * 2)[:schedulers]]
    seen = Watch(
        Event.BEFORE_SCHEDULER_STEP,
        Event.AFTER_SCHEDULER_STEP,
        read=lambda state: [group["lr"] for o in state.optimizers for group in o.param_groups],
    )

    make_trainer(
        model,
        batches(12, 4),
        optimizers=optimizers,
        schedulers=schedulers,
        callbacks=seen,
        max_duration="2ep",
        **options,
    ).fit()

    pairs = list(zip(seen.values[::2], seen.values[1::2], strict=True))
    assert len(pairs) == count
    if isinstance(schedulers[0], lr_scheduler.LRScheduler):
        assert all(sum(a != b for a, b in zip(*pair, strict=True)) == 1 for pair in pairs)


SCHEDULERS = {"schedulers": partial(StepLR, step_size=1)}


@pytest.mark.parametrize("event", [Event.BATCH_CHECKPOINT, Event.AFTER_SAVE, Event.EPOCH_END])
def test_scheduler_steps_without_a_warning(event, tmp_path):
    options = {**SCHEDULERS, "save_folder": tmp_path, "save_interval": "3ba"}
    stop = Raise(KeyboardInterrupt(), event, batch=3)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=stop, **options).fit()

    state = make_trainer(autoresume=True, **options).fit()  # a warning is an error in a test

    whole = make_trainer(**SCHEDULERS).fit()
    assert torch.equal(state.model.weight, whole.model.weight)
