"""Laws of time: lengths are exact, however they are written, added and split."""

import operator
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from composable import Clock, Event, Time, Timestamp, TimeUnit
from composable.core.time import crossed, elapsed
from tests.support.data import batches
from tests.support.observers import Trace
from tests.support.runs import make_trainer
from tests.support.strategies import (
    factors,
    parts_of_the_run,
    times,
    times_of_one_unit,
    whole_factors,
)

units = st.sampled_from(TimeUnit)
fractional = st.sampled_from([TimeUnit.DURATION, TimeUnit.SECOND])

# --- parsing and printing ---


@given(times(), st.integers(0, 10**15), units, st.decimals(0, 1000, places=3), fractional)
def test_parsing_and_printing_are_inverse_and_exact(time, value, unit, decimal, unit_of_decimals):
    """Law of time: Parsing and printing are inverse to each other, in every unit, and decimals are
    exact.
    """
    assert Time.parse(str(time)) == time
    assert Time.parse(str(time)).unit is time.unit
    assert Time.parse(time) is time
    assert str(Time.parse(f"{value}{unit.value}")) == f"{value}{unit.value}"
    exact = Time.parse(f"{decimal}{unit_of_decimals.value}")
    assert exact.value == Fraction(decimal)
    assert Time(float(decimal), unit_of_decimals) == exact


# --- arithmetic ---


@given(times_of_one_unit(3), whole_factors, whole_factors)
def test_arithmetic_is_exact(of_one_unit, m, n):
    """Law of time: Addition is associative and commutative, subtraction is its inverse, and scaling
    distributes over it.
    """
    a, b, c = of_one_unit

    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert (a + b) - b == a + Time(0, a.unit) == a * 1 == a
    assert (a + b) * n == a * n + b * n
    assert a * (m + n) == a * m + a * n
    assert (a * m) * n == a * (m * n)
    assert n * a == a * n
    if a < b:
        with pytest.raises(ValueError, match="is negative: a Time is at least 0"):
            a - b


@given(fractional.flatmap(times), factors, factors.filter(bool), st.integers(1, 99))
def test_fractions_are_exact(time, factor, divisor, n):
    """Law of time: Fractions are exact."""
    assert (time * factor) * divisor == time * (factor * divisor)
    assert (time / divisor) * divisor == time
    assert time * n == sum([time] * (n - 1), time)
    assert Time.parse("0.1dur") * 3 == Time.parse("0.3dur")


@given(times_of_one_unit(2))
def test_the_quotient_of_two_times_is_a_fraction_of_the_run_that_scales_back(of_one_unit):
    part, whole = of_one_unit
    assume(whole.value)

    quotient = part / whole

    assert quotient.unit is TimeUnit.DURATION
    assert whole * Fraction(quotient.value) == part


# --- order ---


@given(times_of_one_unit(3))
def test_the_order_is_total_and_that_of_the_values(of_one_unit):
    """Law of time: The order is total within a unit."""
    a, b, c = of_one_unit

    assert (a < b) + (a == b) + (a > b) == 1
    assert (a <= b) is (a.value <= b.value)
    assert (a <= b) is (b >= a) is not (a > b)
    assert not (a <= b and b <= c) or a <= c
    assert not a <= b or a + c <= b + c
    assert sorted(of_one_unit) == sorted(of_one_unit, key=lambda time: time.value)


@given(times(), times())
def test_times_of_two_units_are_unequal_and_can_be_neither_ordered_nor_added(a, b):
    """Law of time: Times of different units are unequal, and can be neither ordered nor added."""
    assume(a.unit is not b.unit)
    operations = "lt", "le", "gt", "ge", "add", "sub", "truediv"

    assert a != b
    for name in operations:
        with pytest.raises(TypeError, match=r"different units.* Clock\.fraction_of"):
            getattr(operator, name)(a, b)


# --- timestamps ---


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4), max_size=4))
def test_a_timestamp_counts_batches_samples_tokens_and_epochs(epochs):
    """Law of time: A timestamp counts completed work."""
    now = Timestamp()
    for epoch in epochs:
        for samples, tokens in epoch:
            now = now.next_batch(samples, tokens, 0.5)
        within = now.batch_in_epoch, now.sample_in_epoch, now.token_in_epoch
        assert within == (len(epoch), sum(n for n, _ in epoch), sum(n for _, n in epoch))
        now = now.next_epoch()
    all_batches = [batch for epoch in epochs for batch in epoch]

    assert now.get("ep") == Time(len(epochs), "ep")
    assert now.get("ba") == Time(len(all_batches), "ba")
    assert now.get("sp") == Time(sum(n for n, _ in all_batches), "sp")
    assert now.get("tok") == Time(sum(n for _, n in all_batches), "tok")
    assert now.get("sec") == Time(0.5 * len(all_batches), "sec")
    assert now.batch_in_epoch == now.sample_in_epoch == now.token_in_epoch == 0
    assert now.next_iteration().get("iter") == Time(1, "iter")


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_the_timestamp_of_a_run_counts_what_the_loader_gave(count, size, epochs, iteration):
    """Law of time: A timestamp counts completed work."""
    trace, loader = Trace(), batches(count, size)
    now = (
        make_trainer(
            loader=loader,
            max_duration=epochs,
            iteration_length=iteration,
            count_tokens=lambda batch: 2 * len(batch[0]),
            callbacks=trace,
        )
        .fit()
        .timestamp
    )

    ended = [t for e, t in zip(trace.events, trace.timestamps, strict=True) if e is Event.BATCH_END]
    assert (now.epoch, now.batch) == (epochs, epochs * len(loader))
    assert (now.sample, now.token) == (epochs * count, 2 * epochs * count)
    assert now.iteration == epochs // iteration
    assert now.epoch_in_iteration == epochs % iteration
    assert now.token_in_iteration == 2 * count * now.epoch_in_iteration
    assert [t.batch for t in ended] == list(range(1, epochs * len(loader) + 1))
    assert [t.batch_in_epoch for t in ended] == list(range(1, len(loader) + 1)) * epochs
    assert [t.epoch for t in ended] == [e for e in range(epochs) for _ in loader]


# --- clocks ---


@st.composite
def runs(draw):
    """Draw the batches of a run, its length, and the batches of an epoch if known."""
    epochs, length = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    total = epochs * length
    in_epochs = draw(st.booleans())
    return total, f"{epochs}ep" if in_epochs else f"{total}ba", length


@st.composite
def intervals(draw):
    """Draw a length in any unit that a clock of batches can measure."""
    unit = draw(st.sampled_from(["ba", "ep", "dur"]))
    return Time(draw(parts_of_the_run) if unit == "dur" else draw(st.integers(1, 7)), unit)


def at(run, batch):
    """Return the clock of a run after some batches."""
    _, whole, length = run
    return Clock.at(batch=batch, max_duration=whole, epoch_length=length)


@given(runs(), intervals(), st.tuples(*[st.integers(0, 40)] * 3).map(sorted))
def test_crossing_splits(run, interval, moments):
    """Law of time: Crossing an interval is additive: the step from a to c crosses it exactly if the
    step from a to b or from b to c does.
    """
    a, b, c = (at(run, n) for n in moments)

    assert crossed(a, c, interval) is (crossed(a, b, interval) or crossed(b, c, interval))
    assert not crossed(a, a, interval)


def in_batches(interval, run):
    total, _, length = run
    scale = {TimeUnit.BATCH: 1, TimeUnit.EPOCH: length, TimeUnit.DURATION: total}
    return Fraction(interval.value) * scale[interval.unit]


@given(runs(), intervals())
def test_a_time_is_reached_at_its_batch_and_an_interval_crossed_at_its_multiples(run, time):
    """Law of time: A time is reached, and an interval crossed, at the batch given by direct
    calculation.
    """
    total = run[0]
    clocks, every = [at(run, n) for n in range(total + 1)], in_batches(time, run)

    crossing = [n for n in range(1, total + 1) if crossed(clocks[n - 1], clocks[n], time)]

    multiples = [k * every for k in range(1, int(total / every) + 1)]
    assert crossing == sorted({-int(-m // 1) for m in multiples})  # rounded up
    assert [clock.reached(time) for clock in clocks] == [n >= every for n in range(total + 1)]


@given(runs(), st.integers(0, 40))
def test_elapsed_is_the_finished_fraction_of_the_run(run, batch):
    """Law of time: `elapsed` is the completed fraction of the run."""
    total, clock = run[0], at(run, batch)

    assert elapsed(clock) == min(batch / total, 1.0)
    assert clock.fraction_of("1dur") == Fraction(batch, total)
    assert (elapsed(clock) == 1.0) is clock.reached("1dur")
