"""Schedules against Composer's formulas, their shapes, and what they reject."""

import math
from functools import partial

import attrs
import pytest
import torch

from composable import Clock
from composable.optim import (
    Schedule,
    cosine,
    cosine_restarts,
    linear,
    one_cycle,
    one_minus_sqrt,
    per_group,
    polynomial,
    scale_schedule,
    scheduler,
    step,
    warmup_stable_decay,
)
from tests.support.models import mlp
from tests.support.runs import make_trainer

STEPS, LENGTH = 24, 4


def values(schedule, steps=STEPS, length=LENGTH):
    clocks = [
        Clock.at(batch=k, max_duration=f"{steps // length}ep", epoch_length=length)
        for k in range(steps + 1)
    ]
    return [schedule(clock) for clock in clocks]


def cosine_of(tau, alpha_f=0.0):
    return alpha_f + (1 - alpha_f) * (1 + math.cos(math.pi * tau)) / 2


def warmed(t, ramp, start, after):
    return start * t / ramp if t < ramp else after(min(1, (t - ramp) / (STEPS - ramp)))


def restarts(t, cycle=4, factor=2):
    while t >= cycle:
        t, cycle = t - cycle, cycle * factor
    return cosine_of(t / cycle)


COMPOSER = {
    "StepScheduler": (["2ep", 0.5], lambda t: 0.5 ** (t // 8)),
    "MultiStepScheduler": ([["0.25dur", "5ep"], 0.5], lambda t: 0.5 ** ((t >= 6) + (t >= 20))),
    "ConstantScheduler": ([0.5, "0.5dur"], lambda t: 0.5 if t < 12 else 1.0),
    "LinearScheduler": ([0.5, 0.1, "12ba"], lambda t: 0.5 + min(1, t / 12) * (0.1 - 0.5)),
    "ExponentialScheduler": ([0.5], lambda t: 0.5 ** (t / 4)),
    "CosineAnnealingScheduler": (["0.5dur", 0.1], lambda t: cosine_of(min(1, t / 12), 0.1)),
    "CosineAnnealingWarmRestartsScheduler": (["1ep", 2.0], restarts),
    "PolynomialScheduler": (
        [3.0, "1dur", 0.1],
        lambda t: 0.1 + 0.9 * (1 - min(1, t / STEPS)) ** 3,
    ),
    "MultiStepWithWarmupScheduler": (
        ["4ba", ["0.25dur", "5ep"], 0.5],
        lambda t: t / 4 if t < 4 else 0.5 ** ((t >= 6) + (t >= 20)),
    ),
    "ConstantWithWarmupScheduler": (["1ep", 0.5], lambda t: 0.5 * min(1, t / 4)),
    "LinearWithWarmupScheduler": (
        ["1ep", 0.5, 0.1],
        lambda t: warmed(t, 4, 0.5, lambda tau: 0.5 - 0.4 * tau),
    ),
    "CosineAnnealingWithWarmupScheduler": (
        ["0.25dur", "1dur", 0.1],
        lambda t: warmed(t, 6, 1, lambda tau: cosine_of(tau, 0.1)),
    ),
    "PolynomialWithWarmupScheduler": (
        ["1ep"],
        lambda t: warmed(t, 4, 1, lambda tau: (1 - tau) ** 2),
    ),
}


@pytest.mark.parametrize("name", COMPOSER)
def test_values_are_those_of_composer(name):
    arguments, formula = COMPOSER[name]

    assert set(COMPOSER) == {one for one in vars(scheduler) if one.endswith("Scheduler")}
    given = values(getattr(scheduler, name)(*arguments))
    assert given == pytest.approx([formula(t) for t in range(STEPS + 1)], abs=1e-12)


@pytest.mark.parametrize(
    ("shape", "formula"),
    [
        ("linear", lambda tau: 1 - tau),
        ("cosine", cosine_of),
        ("one_minus_sqrt", lambda tau: 1 - math.sqrt(tau)),
        (1.2, lambda tau: (1 - tau) ** 1.2),
    ],
)
def test_stable_phase_is_followed_by_the_decay(shape, formula):
    given = values(warmup_stable_decay("0.5dur", 0.1, shape=shape, warmup="4ba"))
    decay = [0.1 + 0.9 * formula(k / 12) for k in range(13)]

    assert given == pytest.approx([0, 0.25, 0.5, 0.75, *([1] * 8), *decay])


def test_decay_over_the_whole_run_is_the_plain_decay():
    assert values(warmup_stable_decay("1dur")) == values(one_minus_sqrt())
    assert values(warmup_stable_decay("1dur", shape="cosine")) == values(cosine())
    assert values(warmup_stable_decay("0ba")) == [1.0] * (STEPS + 1)


@pytest.mark.parametrize(
    "build",
    [
        partial(linear, 0.5, 0.1),
        cosine,
        one_minus_sqrt,
        partial(polynomial, 2.0),
        warmup_stable_decay,
    ],
)
@pytest.mark.parametrize("duration", ["1dur", "6ep", "12ba", "0.5dur"])
def test_warmup_as_long_as_the_duration_ends_at_the_start_value(build, duration):
    schedule = build(duration=duration, **{"warmup": duration})
    end = 12 if duration in ("12ba", "0.5dur") else STEPS

    given = values(schedule)[: end + 1]
    assert given == pytest.approx([schedule.start * k / end for k in range(end + 1)])


@pytest.mark.parametrize("build", [linear, cosine])
@pytest.mark.parametrize(
    ("warmup", "duration"), [("5ba", "4ba"), ("3ep", "4ba"), ("10ba", "0.4dur")]
)
def test_warmup_may_be_longer_than_the_run_but_not_than_the_duration(build, warmup, duration):
    with pytest.raises(ValueError, match=f"warmup='{warmup}' is longer than duration="):
        values(build(warmup=warmup, duration=duration))
    assert values(build(warmup="30ba"))[:2] == pytest.approx([0, 1 / 30])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_one_cycle_may_only_rise_or_fall(share):
    found = values(one_cycle(share, anneal_strategy="linear", div_factor=4), steps=4)

    assert found == sorted(found, reverse=not share)
    assert 1.0 in found


@pytest.mark.parametrize("factor", [1.5, 1.1, 2, 3])
def test_each_cycle_starts_at_1_and_is_longer_by_the_factor(factor):
    schedule = cosine_restarts("10ba", factor)
    at = [schedule(Clock.at(batch=k, max_duration="300ba")) for k in range(300)]
    starts, start, size = [], 0.0, 10.0
    while start < 299:
        starts.append(math.ceil(start - 1e-9))
        start, size = start + size, size * factor

    rises = [0] + [k for k in range(1, 300) if at[k] > at[k - 1]]
    assert rises == starts
    assert at[starts[1]] > 0.9


def test_scaled_schedule_keeps_its_warmup_on_request():
    schedule = linear(warmup="4ba")
    run = partial(Clock.at, max_duration="12ba")
    scaled, kept = (scale_schedule(schedule, 0.5, scale_warmup=w) for w in (True, False))

    assert [scaled(run(batch=k)) for k in range(3)] == [0, 0.5, 1]
    assert [kept(run(batch=k)) for k in (0, 1, 4, 8, 12)] == [0, 0.25, 1, 0.5, 0]
    nested = scale_schedule(scale_schedule(schedule, 0.5), 0.5)
    assert nested(run(batch=1, max_duration="6ba")) == 1
    assert scale_schedule(lambda clock: clock.timestamp.batch, 2)(run(batch=3)) == 1.5


def test_scaled_per_group_schedule_scales_each():
    scaled = scale_schedule(per_group({"head": step("30ep")}, default=cosine()), 0.5)

    assert scaled.schedule_of({"name": "head"}) == scale_schedule(step("30ep"), 0.5)
    assert scaled.schedule_of({}) == scale_schedule(cosine(), 0.5)


def test_scaled_warmup_that_outlasts_the_run_warns():
    trainer = make_trainer(schedulers=scale_schedule(cosine(warmup="20ba"), 0.5))
    with pytest.warns(UserWarning, match="warmup='10ba' of ScaledSchedule is longer than the run"):
        trainer.fit()


def test_schedule_of_a_group_that_no_optimizer_has_is_an_error():
    model = mlp()
    groups = [{"params": list(model.parameters()), "name": "all"}]
    trainer = partial(
        make_trainer,
        model=model,
        optimizers=torch.optim.SGD(groups, lr=0.1),
        schedulers=per_group({"head": cosine()}),
    )
    with pytest.raises(ValueError, match="the group 'head', and the parameter groups are named"):
        trainer().fit()


@pytest.mark.parametrize("function", [polynomial, per_group, scheduler.CosineAnnealingScheduler])
def test_function_instead_of_its_schedule_is_named(function):
    with pytest.raises(TypeError, match=f"pass the schedule that it returns, {function.__name__}"):
        make_trainer(schedulers=function).fit()


@attrs.frozen
class Saw(Schedule):
    duration: float = attrs.field(default=50.0, kw_only=True)
    period: float = attrs.field(default=10.0, kw_only=True)

    def after_warmup(self, clock):
        return clock.timestamp.batch % self.period / self.period


def test_fields_of_a_schedule_of_the_user_are_its_own():
    saw = Saw(warmup="5ba")

    assert [saw(Clock.at(batch=k, max_duration="100ba")) for k in (2, 7)] == [0.4, 0.7]
    assert not saw.counts_whole(Clock.at(batch=0, max_duration="100ba"))
