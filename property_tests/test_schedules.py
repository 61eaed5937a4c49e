"""Law: the learning rate of batch k is the schedule at k times the initial one, and no more."""

import math
import tempfile
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from composable import Clock, Control, Event
from composable.loggers import InMemoryLogger
from composable.optim import (
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
from composable.optim.periodic import Step
from tests.support.data import batches, stream
from tests.support.models import mlp
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer
from tests.support.strategies import few


@st.composite
def lengths(draw, *, epochs, length, least=0):
    """Draw a part of a run: as a number of batches, and as a time in one of three units."""
    unit = draw(st.sampled_from(["ba", "ep", "dur"]))
    if unit == "ba":
        n = draw(st.integers(least, epochs * length))
        return n, f"{n}ba"
    if unit == "ep":
        n = draw(st.integers(least, epochs))
        return n * length, f"{n}ep"
    tenths = draw(st.integers(least, 10))
    return tenths * epochs * length / 10, f"{tenths / 10}dur"


@st.composite
def scheduled_runs(draw):
    """Draw the epochs and batches of a run, a schedule, and its formula as a function of k."""
    epochs, length = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    part = partial(lengths, epochs=epochs, length=length)
    end, duration = draw(part(least=1))
    ramp, warmup = draw(part().filter(lambda drawn: drawn[0] <= end))
    a, b = draw(st.floats(0.1, 2)), draw(st.floats(0.0, 2))
    size, step_size = draw(part(least=1))

    def done(k):
        return float(k > ramp) if end <= ramp else min((k - ramp) / (end - ramp), 1.0)

    def cycle(periods):
        return max(periods - math.floor(periods + 1e-9), 0.0)

    schedule, start, after = draw(
        st.sampled_from(
            [
                (constant(a, warmup=warmup), a, lambda k: a),
                (
                    linear(a, b, duration=duration, warmup=warmup),
                    a,
                    lambda k: a + done(k) * (b - a),
                ),
                (
                    cosine(b, duration=duration, warmup=warmup),
                    1.0,
                    lambda k: b + (1 - b) * (1 + math.cos(math.pi * done(k))) / 2,
                ),
                (step(step_size, a, warmup=warmup), 1.0, lambda k: a ** ((k + 1e-9) // size)),
                (
                    polynomial(a, b, duration=duration, warmup=warmup),
                    1.0,
                    lambda k: b + (1 - b) * (1 - done(k)) ** a,
                ),
                (
                    one_minus_sqrt(b, duration=duration, warmup=warmup),
                    1.0,
                    lambda k: b + (1 - b) * (1 - math.sqrt(done(k))),
                ),
                (
                    warmup_stable_decay(
                        duration, b, shape="linear", duration=duration, warmup="0ba"
                    ),
                    1.0,
                    lambda k: b + (1 - b) * (1 - min(k / end, 1)),
                ),
                (
                    warmup_stable_decay(duration, b, shape=a, duration=duration, warmup="0ba"),
                    1.0,
                    lambda k: b + (1 - b) * (1 - min(k / end, 1)) ** a,
                ),
                (
                    multi_step([warmup, duration], a, warmup=warmup),
                    1.0,
                    lambda k: a ** ((k + 1e-9 >= ramp) + (k + 1e-9 >= end)),
                ),
                (
                    exponential(a, step_size, warmup=warmup),
                    1.0,
                    lambda k: a ** ((k - ramp) / size),
                ),
                (
                    cosine_restarts(step_size, 1, b, warmup=warmup),
                    1.0,
                    lambda k: b + (1 - b) * (1 + math.cos(math.pi * cycle((k - ramp) / size))) / 2,
                ),
            ]
        )
    )
    ramp = 0 if not schedule.warmup.value else ramp
    return epochs, length, schedule, lambda k: start * k / ramp if k < ramp else after(k)


def rates_used(epochs, length, schedules, *, stop=None, in_epochs=True, **options):
    """Return the learning rates of each batch, just before and just after the optimizer steps.

    The run is interrupted after `stop` batches, and continues in another call of `fit`.
    """

    def interrupt(event, state, logger):
        due = event is Event.BATCH_END and state.timestamp.batch == stop
        return Control.STOP if due else None

    watches = [
        Watch(event, read=lambda state: [g["lr"] for o in state.optimizers for g in o.param_groups])
        for event in (Event.BEFORE_OPTIMIZER_STEP, Event.AFTER_OPTIMIZER_STEP)
    ]
    training = make_trainer(
        loader=batches(length, 1),
        schedulers=schedules,
        callbacks=[*watches, interrupt],
        max_duration=f"{epochs}ep" if in_epochs else f"{epochs * length}ba",
        **options,
    )
    training.fit()
    if training.state.timestamp.batch < epochs * length:
        training.fit()
    before, after = (watch.values for watch in watches)
    assert before == after
    return before


def clock_at(k, epochs, length):
    return Clock.at(batch=k, max_duration=f"{epochs}ep", epoch_length=length)


def clocks(epochs, length):
    return [clock_at(k, epochs, length) for k in range(epochs * length)]


@few
@given(scheduled_runs(), st.lists(st.floats(1e-3, 10), min_size=3, max_size=3), st.data())
def test_learning_rate_of_batch_k_is_the_schedule_at_k_times_that_of_the_group(run, initial, data):
    """Law of schedules: The learning rate of batch k is the group's times the schedule at k."""
    epochs, length, schedule, formula = run
    model, factor = mlp(), data.draw(st.sampled_from([None, 0.3, 1.0]), label="another schedule")
    first, second, third = (
        {"params": list(layer), "lr": lr}
        for layer, lr in zip(
            [[model[0].weight], [model[0].bias], model[3].parameters()], initial, strict=True
        )
    )

    rates = rates_used(
        epochs,
        length,
        schedule if factor is None else [schedule, constant(factor)],
        model=model,
        optimizers=[torch.optim.SGD([first, second]), torch.optim.SGD([third])],
        in_epochs=data.draw(st.booleans(), label="in epochs"),
        stop=data.draw(st.sampled_from([None, *range(1, epochs * length)]), label="stop"),
        eval_dataloader=data.draw(st.sampled_from([None, batches()]), label="evaluates"),
    )

    expected = [[lr * schedule(clock) for lr in initial] for clock in clocks(epochs, length)]
    if factor is None:
        assert rates == expected == in_own_loop(epochs, length, schedule, initial)
    else:
        assert_close(rates, [[factor * rate for rate in each] for each in expected])
    values = [[lr * formula(k) for lr in initial] for k in range(epochs * length)]
    assert_close(expected, values, rtol=1e-6, atol=1e-12)


def in_own_loop(epochs, length, schedule, initial):
    """Return the learning rates of a plain loop, with a scheduler of torch."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in initial]
    optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: schedule(clock_at(k, epochs, length)),
    )
    rates = []
    for _ in range(epochs * length):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rates


@given(scheduled_runs())
def test_warmup_rises_from_0_and_ends_at_the_start_of_the_schedule(run):
    """Law of schedules: A warm-up rises from 0 and ends at the start of the schedule."""
    epochs, length, schedule, _ = run
    whole = [clock_at(k, epochs, length) for k in range(epochs * length + 1)]
    rising = [schedule(clock) for clock in whole if not clock.reached(schedule.warmup)]

    assert rising == sorted(set(rising))
    assert all(0 <= value < schedule.start for value in rising)
    if rising:
        assert rising[0] == 0
        ends = clock_at(len(rising), epochs, length)
        exactly = ends.fraction_of(schedule.warmup) == 1
        falls_at_once = getattr(schedule, "milestones", ()) or isinstance(schedule, Step)
        assert not exactly or falls_at_once or schedule(ends) == schedule.start


@given(scheduled_runs(), st.sampled_from([2, 3, 5]))
def test_scaled_schedule_at_a_multiple_of_k_is_the_schedule_at_k(run, factor):
    """Law of schedules: A schedule scaled by r has at r k the value of the schedule at k."""
    epochs, length, schedule, _ = run
    scaled = scale_schedule(schedule, factor)

    for k in range(epochs * length + 1):
        short = clock_at(k, epochs, length)
        long = clock_at(k * factor, epochs * factor, length)
        assert scaled(long) == schedule(short)
        assert scale_schedule(scaled, 1 / Fraction(factor))(short) == schedule(short)


@few
@given(scheduled_runs(), scheduled_runs(), st.booleans())
def test_group_follows_its_own_schedule_and_the_common_ones(run, other, common):
    """Law of schedules: A group follows its own schedule and the common ones."""
    epochs, length, first, _ = run
    second = other[2]
    assume(not second.outlasts(clock_at(0, epochs, length)))
    model = mlp()
    groups = [
        {"params": model[0].parameters(), "lr": 0.5, "name": "first"},
        {"params": model[3].parameters(), "lr": 0.25},
    ]
    schedules = [per_group({"first": first}, second), *([constant(0.5)] if common else [])]

    try:
        expected = [[first(clock), second(clock)] for clock in clocks(epochs, length)]
    except ValueError:  # the second one does not fit into the run of the first
        assume(False)
    rates = rates_used(epochs, length, schedules, model=model, optimizers=torch.optim.SGD(groups))

    shared = 0.5 if common else 1.0
    assert_close(rates, [[0.5 * a * shared, 0.25 * b * shared] for a, b in expected])


@pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")
@few
@given(
    loader=st.sampled_from([batches, stream]),
    fits=st.sampled_from([["6ba"], ["2ep"], ["1ba", "1ep", "3ba"], ["2ba", "3ba", "1ba"]]),
    stop=st.sampled_from([Event.BATCH_START, Event.BATCH_END, Event.AFTER_SAVE, Event.EPOCH_END]),
    stopped_at=st.integers(0, 6),
    split=st.sampled_from([{}, {"grad_accum": 2}, {"accumulate_batches": 2}]),
)
def test_a_table_of_n_rates_trains_n_batches_each_with_its_own(
    loader, fits, stop, stopped_at, split
):
    """Law of schedules: A table of N rates trains N batches, batch i with rate i, also after a
    resume at any point.
    """
    data = loader(12 * split.get("accumulate_batches", 1))
    table, used = [0.5**i for i in range(6)], {}

    def note(state):
        used[state.timestamp.batch] = state.optimizers[0].param_groups[0]["lr"]

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "schedulers": lambda clock: table[clock.timestamp.batch],
            "save_folder": folder,
            "save_interval": "1ba",
            "autoresume": True,
            "max_duration": None,
            **split,
        }
        for callback in (Raise(KeyboardInterrupt(), stop, stopped_at), None):
            logs = InMemoryLogger()
            observers = [
                Watch(Event.AFTER_OPTIMIZER_STEP, read=note),
                *([callback] * bool(callback)),
            ]
            trainer = make_trainer(mlp(), data, callbacks=observers, loggers=logs, **options)
            try:
                for duration in fits:
                    state = trainer.fit(duration=duration)
            except KeyboardInterrupt:
                continue

    assert state.timestamp.batch == 6
    assert [used[i] for i in range(6)] == [0.1 * rate for rate in table]
    assert logs.series("lr") == [0.1 * rate for rate in table]
