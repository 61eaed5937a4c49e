"""Times: their strings and arithmetic; what a run has done, and how much of it that is."""

import decimal
import pickle
from fractions import Fraction

import numpy as np
import pytest

from composable import Clock, Time, Timestamp, TimeUnit


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("10ep", 10, TimeUnit.EPOCH),
        ("2ba", 2, TimeUnit.BATCH),
        ("0ba", 0, TimeUnit.BATCH),
        ("100sp", 100, TimeUnit.SAMPLE),
        ("1000tok", 1000, TimeUnit.TOKEN),
        ("2iter", 2, TimeUnit.ITERATION),
        ("0.5dur", Fraction(1, 2), TimeUnit.DURATION),
        ("1/3dur", Fraction(1, 3), TimeUnit.DURATION),
        ("30sec", 30, TimeUnit.SECOND),
        ("0.25s", Fraction(1, 4), TimeUnit.SECOND),
        ("5m", 300, TimeUnit.SECOND),
        ("2h", 7200, TimeUnit.SECOND),
        ("1h30m", 5400, TimeUnit.SECOND),
        ("1h30m15s", 5415, TimeUnit.SECOND),
        ("1h15s", 3615, TimeUnit.SECOND),
        (3, 3, TimeUnit.EPOCH),
    ],
)
def test_reads_every_documented_form(text, value, unit):
    time = Time.parse(text)

    assert time.value == value
    assert time.unit is unit


FORMS = r"'10ep' \(epochs\), '2ba' .*'0\.5dur' .*'1h30m'; a plain integer means epochs"
NO_STRINGS = ["", "-1ba", "infdur", "nandur", "10", "10 ep", "e3tok", "ep", "1h30", "10EP", " "]
NO_STRINGS += ["\u0661\u0660ep", "\u0669s"]  # other digits
NO_STRINGS += ["_4tok", "4_tok", "4__0tok", "e3ba", "3eba", "3e-1ba", "1e100sp", "3e1"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        *((text, ValueError, rf"^invalid time '{text}': .*{FORMS}\.$") for text in NO_STRINGS),
        *(
            (value, TypeError, rf"^A time must be a number and a unit: {FORMS}; got")
            for value in (True, None, 1.5, b"1ep", ["1ep"])
        ),
        *(
            (text, ValueError, rf"'{text}'.*not whole.*'0\.5dur'")
            for text in ("1.5ep", "0.5ba", "1/2sp", "1.25e1ba")
        ),
        ("1/0dur", ValueError, "invalid time '1/0dur': it divides by zero"),
    ],
)
def test_rejects_what_is_no_time(text, error, message):
    with pytest.raises(error, match=message):
        Time.parse(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("10ep", "10ep"),
        ("0.50dur", "0.5dur"),
        ("0.05dur", "0.05dur"),
        ("1/3dur", "1/3dur"),
        ("1h30m", "5400sec"),
        ("3e10sp", "30000000000sp"),
        ("1.5e3ba", "1500ba"),
        ("4_000tok", "4000tok"),
        ("1_000_000ba", "1000000ba"),
        ("2_5e1ep", "250ep"),
    ],
)
def test_prints_as_a_string_that_reads_as_itself_and_can_be_pickled(text, printed):
    time = Time.parse(text)

    assert str(time) == printed
    assert repr(time) == f"Time('{printed}')"
    assert eval(repr(time)) == Time.parse(printed) == pickle.loads(pickle.dumps(time)) == time


def test_prints_the_same_in_any_decimal_context():
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.Inexact] = True
        printed = [str(Time(Fraction(1, n), "dur")) for n in (8, 3, 10**40)]

    assert printed == ["0.125dur", "1/3dur", f"0.{'0' * 39}1dur"]


def test_accepts_floats_of_numpy():
    half = np.float64(0.5)

    assert Time(half, "dur") == Time("0.5dur")
    assert Time("1sec") * half == half * Time("1sec") == Time("0.5sec")
    assert Time("1sec") / half == Time("2sec")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (lambda by=by: Time("1ep") / by, ZeroDivisionError, f"1ep cannot be divided by {shown}")
            for by, shown in [(0, "0,"), (0.0, "0.0,"), ("0ep", "0ep,"), (Time("0ep"), "0ep,")]
        ),
        (lambda: Time("1ep").seconds, TypeError, "1ep is not in seconds"),
        (lambda: setattr(Time("1ep"), "value", 2), AttributeError, "frozen|attribute|set"),
        (lambda: Time("1ep") == "1ep", TypeError, r"compared with a string: use Time\('1ep'\)"),
        (lambda: Time("1ep") < "2ep", TypeError, "not supported|string"),
    ],
)
def test_rejects_operations_without_a_meaning(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert Time("1m").seconds == 60.0
    assert Time("1ep") not in (1, None)


# --- timestamps and clocks ---


def test_an_iteration_counts_from_zero():
    now = Timestamp().next_batch(tokens=8, seconds=0.5).next_epoch()
    now = now.next_batch(tokens=2, seconds=0.25)
    assert (now.total_wct, now.epoch_wct, now.batch_wct) == (0.75, 0.25, 0.25)
    now = now.next_epoch()
    assert (now.epoch_in_iteration, now.token_in_iteration, now.iteration_wct) == (2, 10, 0.75)
    assert (now.token_in_epoch, now.epoch_wct) == (0, 0.0)

    now = now.next_iteration().next_batch(tokens=1, seconds=0.125)

    assert (now.iteration, now.epoch, now.epoch_in_iteration) == (1, 2, 0)
    assert (now.token, now.token_in_iteration) == (11, 1)
    assert (now.total_wct, now.iteration_wct) == (0.875, 0.125)


def test_a_clock_measures_epochs_in_batches_where_it_can():
    clock = Clock.at(batch=7, max_duration="2ep", epoch_length=5)
    whole = Clock(Timestamp(epoch=1, batch=7, batch_in_epoch=2), "2ep")

    assert (clock.timestamp.epoch, clock.timestamp.batch_in_epoch) == (1, 2)
    assert clock.fraction_of("1dur") == Fraction(7, 10)
    assert clock.fraction_of("1ep") == Fraction(7, 5)
    assert clock.fraction_of("14ba") == Fraction(1, 2)
    assert whole.fraction_of("1dur") == Fraction(1, 2)  # without a length of the epoch


@pytest.mark.parametrize(
    ("max_duration", "message"),
    [
        ("2ep", "max_duration='2ep' is in epochs, but epoch_length=None.*such as len"),
        (2, "max_duration=2 is in epochs, but epoch_length=None.*such as len"),
        ("960sp", "max_duration='960sp' cannot be compared with batch=500; .*your own Timestamp"),
        ("1dur", "max_duration='1dur' cannot be compared with batch=500"),
        ("soon", "max_duration='soon': invalid time 'soon'"),
    ],
)
def test_a_number_of_batches_must_tell_where_the_run_stands(max_duration, message):
    with pytest.raises(ValueError, match=message):
        Clock.at(batch=500, max_duration=max_duration)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Timestamp().get("dur"), TypeError, r"use Clock\.fraction_of"),
        (lambda: setattr(Timestamp(), "batch", 3), AttributeError, "frozen|attribute|set"),
        (
            lambda: Clock(Timestamp(), "0.5dur"),
            *(ValueError, r"max_duration='0\.5dur' is a fraction of itself"),
        ),
        (
            lambda: Clock.at(batch=1, max_duration="3ba").fraction_of("0ba"),
            *(ValueError, "length='0ba' is zero"),
        ),
        (
            lambda: Clock(Timestamp()).fraction_of("1dur"),
            *(ValueError, "1dur is undefined: the run has no max_duration"),
        ),
    ],
)
def test_rejects_fractions_without_a_meaning(call, error, message):
    with pytest.raises(error, match=message):
        call()
