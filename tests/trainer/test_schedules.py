"""Schedules against torch's schedulers and against their formulas."""

import math
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

from composable import Clock, Time, Timestamp
from composable.loggers import InMemoryLogger
from composable.optim import Schedule, constant, cosine, linear, step
from tests.support.tiny import batches, make_trainer

STEPS = 12


def values(schedule, max_duration=f"{STEPS}ba", steps=STEPS + 1, epoch_length=None):
    return [
        schedule(Clock.at(batch=k, max_duration=max_duration, epoch_length=epoch_length))
        for k in range(steps)
    ]


def torch_values(build, steps=STEPS + 1):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = build(optimizer)
    rates = []
    for _ in range(steps):
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
            constant(0.5),
            partial(lr_scheduler.ConstantLR, factor=0.5, total_iters=100),
        ),
        (
            linear(1.0, 1.0, warmup="4ba"),
            partial(lr_scheduler.LambdaLR, lr_lambda=lambda k: min(k / 4, 1.0)),
        ),
    ],
)
def test_values_are_those_of_torch(ours, theirs):
    assert values(ours) == pytest.approx(torch_values(theirs), abs=1e-7)


def test_epochs_are_as_long_as_their_batches():
    ours = values(step("2ep", 0.5), "4ep", epoch_length=3)

    assert ours == pytest.approx([1.0] * 6 + [0.5] * 6 + [0.25])
    assert values(linear(), "4ep", epoch_length=3) == pytest.approx(values(linear()))


@pytest.mark.parametrize("warmup", ["4ba", "1/3dur"])
@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (partial(linear, 1.0, 0.2), lambda tau: 1.0 - 0.8 * tau),
        (partial(linear, 0.5, 2.0), lambda tau: 0.5 + 1.5 * tau),
        (partial(cosine, 0.2), lambda tau: 0.2 + 0.8 * (1 + math.cos(math.pi * tau)) / 2),
        (partial(constant, 0.7), lambda tau: 0.7),
    ],
)
def test_a_warm_up_rises_to_the_start_of_the_schedule_that_then_begins(build, formula, warmup):
    ours = values(build(warmup=warmup))

    assert ours[:4] == pytest.approx([formula(0) * k / 4 for k in range(4)])
    assert ours[4:] == pytest.approx([formula(k / 8) for k in range(9)])


def test_a_warm_up_does_not_move_the_stairs():
    ours = values(step("6ba", 0.5, warmup="2ba"))

    assert ours == pytest.approx([0.0, 0.5] + [1.0] * 4 + [0.5] * 6 + [0.25])


def test_a_warm_up_in_epochs_goes_with_a_run_in_epochs():
    ours = values(linear(warmup="1ep"), "4ep", epoch_length=3)

    assert ours[:4] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert ours[-1] == 0.0


@pytest.mark.parametrize("schedule", [linear(1.0, 0.3), cosine(0.3)])
def test_after_its_duration_a_schedule_keeps_its_last_value(schedule):
    short = type(schedule)(**{**_fields(schedule), "duration": "6ba"})

    assert values(short)[6:] == pytest.approx([0.3] * 7)


def _fields(schedule):
    import attrs

    return attrs.asdict(schedule, recurse=False)


def test_a_warm_up_as_long_as_the_run_ends_where_the_schedule_starts():
    assert values(linear(1.0, 0.5, warmup="1dur"))[-1] == pytest.approx(1.0)


def test_schedules_are_values():
    assert cosine(0.1) == cosine(0.1, duration="1dur")
    assert cosine(0.1) != cosine(0.2)
    assert isinstance(step("1ep"), Schedule)
    assert linear(warmup=2).warmup == Time.parse("2ep")


@pytest.mark.parametrize(
    "schedule", [linear(warmup="2ba"), cosine(0.1), step("2ba", 0.5), constant(0.5)]
)
def test_the_trainer_sets_the_rate_of_every_batch(schedule):
    memory = InMemoryLogger()
    make_trainer(schedulers=schedule, loggers=[memory]).fit()

    expected = values(schedule, "2ep", 6, epoch_length=3)
    assert memory.series("lr") == pytest.approx([0.1 * value for value in expected])


def test_a_rate_that_is_a_tensor_is_set_in_place():
    rate = torch.tensor(0.1)
    trainer = make_trainer(
        optimizers=lambda p: torch.optim.Adam(p, lr=rate, foreach=False), schedulers=linear()
    )
    trainer.fit()

    (group,) = trainer.state.optimizers[0].param_groups
    assert isinstance(group["lr"], torch.Tensor)
    assert group["lr"] == 0.0


def test_a_plain_loop_can_use_a_schedule():
    rates = []
    for batch, _ in enumerate(batches()):
        clock = Clock.at(batch=batch, max_duration="3ba")
        rates.append(0.1 * cosine()(clock))

    assert rates == pytest.approx([0.1, 0.075, 0.025])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: step("0ba"), ValueError, "step_size='0ba' must be positive"),
        (lambda: step("often"), ValueError, "step_size='often': invalid time 'often'"),
        (lambda: linear(duration="late"), ValueError, "duration='late': invalid time 'late'"),
        (lambda: cosine(warmup=1.5), TypeError, "warmup=1.5: A time must be .* got 1.5"),
        (lambda: constant(warmup="5"), ValueError, "warmup='5': invalid time '5'"),
        (lambda: cosine(0.1, "5ba"), TypeError, "positional argument"),
    ],
)
def test_times_are_checked(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("value", ["1ep", True, None, Time("1ep"), torch.tensor(1.0)])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (constant, "alpha"),
        (linear, "alpha_i"),
        (partial(linear, 1.0), "alpha_f"),
        (cosine, "alpha_f"),
        (partial(step, "1ep"), "gamma"),
    ],
)
def test_multipliers_are_numbers(build, name, value):
    with pytest.raises(TypeError, match=rf"{name}=.* must be a number\. Pass durations by keyword"):
        build(value)
    with pytest.raises(ValueError, match=f"{name}=nan must be finite"):
        build(math.nan)


@pytest.mark.parametrize("build", [constant, linear, cosine, partial(step, "2ep")])
@pytest.mark.parametrize(("warmup", "whole"), [("1ep", "9ba"), ("1ep", "3ep"), ("0.5dur", "3ep")])
def test_a_warm_up_in_epochs_of_unknown_length_is_refused(build, warmup, whole):
    clock = Clock(Timestamp(batch=2, batch_in_epoch=2), whole)

    with pytest.raises(
        ValueError, match=rf"warmup='{warmup}' cannot be measured in epochs of unkn"
    ):
        build(warmup=warmup)(clock)


def test_a_warm_up_in_iterations_is_refused():
    with pytest.raises(
        ValueError, match=r"warmup='1iter' cannot be measured .* use batches, such as"
    ):
        constant(warmup="1iter")(Clock(Timestamp(), "9ba", 3))


def test_no_warm_up_needs_no_length():
    assert constant(warmup="0ep")(Clock(Timestamp(), "3ep")) == 1.0


def test_a_trainer_without_the_length_of_an_epoch_refuses_a_warm_up_in_epochs():
    class Stream:
        def __iter__(self):
            return iter(batches())

    with pytest.raises(ValueError, match=r"warmup='1ep' .* with a loader that has a length"):
        make_trainer(train_dataloader=Stream(), schedulers=constant(warmup="1ep")).fit()
    make_trainer(train_dataloader=Stream(), schedulers=constant(warmup="2ba")).fit()


def test_units_that_can_not_be_related_are_refused():
    clock = Clock(Timestamp(batch=7), "10ep")  # of unknown length

    with pytest.raises(ValueError, match="warmup='2ba' and duration='1dur' cannot be"):
        linear(warmup="2ba")(clock)


def test_a_schedule_of_a_run_without_an_end_is_refused():
    with pytest.raises(ValueError, match="the run has no max_duration"):
        cosine()(Clock(Timestamp()))


def test_a_schedule_of_its_own_needs_a_rule():
    class Mine(Schedule):
        pass

    with pytest.raises(NotImplementedError, match=r"Mine must implement after_warmup\(clock\)"):
        Mine()(Clock.at(batch=0, max_duration="1ba"))
