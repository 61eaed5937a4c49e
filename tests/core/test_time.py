"""Times: the strings of the documentation, arithmetic, and what is refused."""

import pickle
from fractions import Fraction

import numpy as np
import pytest

from composable import Time, TimeUnit


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
        ("1dur", 1, TimeUnit.DURATION),
        ("1/3dur", Fraction(1, 3), TimeUnit.DURATION),
        ("30sec", 30, TimeUnit.SECOND),
        ("90s", 90, TimeUnit.SECOND),
        ("0.25s", Fraction(1, 4), TimeUnit.SECOND),
        ("5m", 300, TimeUnit.SECOND),
        ("2h", 7200, TimeUnit.SECOND),
        ("1h30m", 5400, TimeUnit.SECOND),
        ("1h30m15s", 5415, TimeUnit.SECOND),
        ("1h15s", 3615, TimeUnit.SECOND),
        (3, 3, TimeUnit.EPOCH),
    ],
)
def test_every_documented_form_is_read(text, value, unit):
    time = Time.parse(text)

    assert time.value == value
    assert time.unit is unit


FORMS = r"'10ep' \(epochs\), '2ba' .*'0\.5dur' .*'1h30m'; a plain integer means epochs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1ba",
        "infdur",
        "nandur",
        "10",
        "10 ep",
        "e3tok",
        "ep",
        "1h30",
        "10EP",
        " ",
        "\u0661\u0660ep",
        "\u0669s",
    ],
)
def test_an_unreadable_string_is_answered_with_the_readable_ones(text):
    with pytest.raises(ValueError, match=rf"^invalid time '{text}': .*{FORMS}\.$"):
        Time.parse(text)


@pytest.mark.parametrize("value", [True, None, 1.5, b"1ep", ["1ep"]])
def test_another_type_is_answered_with_the_readable_ones(value):
    with pytest.raises(TypeError, match=rf"^A time must be a number and a unit: {FORMS}; got"):
        Time.parse(value)


@pytest.mark.parametrize(
    ("text", "unit"), [("1.5ep", "epoch"), ("0.5ba", "batch"), ("1/2sp", "sample")]
)
def test_a_fraction_of_what_is_counted_is_refused_in_the_words_of_the_user(text, unit):
    with pytest.raises(ValueError, match=rf"'{text}'.*not whole.*'0\.5dur'"):
        Time.parse(text)


def test_a_division_by_zero_is_named():
    with pytest.raises(ValueError, match="invalid time '1/0dur': it divides by zero"):
        Time.parse("1/0dur")


@pytest.mark.parametrize(
    ("value", "unit", "error", "message"),
    [
        (-1, "ba", ValueError, "value=-1 is negative: a Time is at least 0"),
        (-1, "ep", ValueError, "value=-1 is negative"),
        (float("inf"), "dur", ValueError, "value=inf is not finite"),
        (float("nan"), "dur", ValueError, "value=nan is not finite"),
        (1.5, "ep", ValueError, "value=1.5 is not whole, and epochs cannot be split"),
        (True, "ep", TypeError, "value=True must be an int, a float or a Fraction"),
        ("1", "ep", TypeError, "value='1' must be an int, a float or a Fraction"),
        (1, "min", ValueError, "unit='min' is unknown: use one of 'iter', 'ep', 'ba', 'sp'"),
    ],
)
def test_a_wrong_value_or_unit_is_refused(value, unit, error, message):
    with pytest.raises(error, match=message):
        Time(value, unit)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("10ep", "10ep"),
        ("0.50dur", "0.5dur"),
        ("0.05dur", "0.05dur"),
        ("1/3dur", "1/3dur"),
        ("1h30m", "5400sec"),
    ],
)
def test_a_time_prints_as_a_string_that_reads_as_itself(text, printed):
    time = Time.parse(text)

    assert str(time) == printed
    assert repr(time) == f"Time('{printed}')"
    assert eval(repr(time)) == Time.parse(printed) == time


def test_the_floats_of_numpy_are_floats():
    half = np.float64(0.5)

    assert Time(half, "dur") == Time("0.5dur")
    assert Time("1sec") * half == half * Time("1sec") == Time("0.5sec")
    assert Time("1sec") / half == Time("2sec")


@pytest.mark.parametrize(
    ("divisor", "shown"), [(0, "0"), (0.0, "0.0"), ("0ep", "0ep"), (Time("0ep"), "0ep")]
)
def test_dividing_by_nothing_is_refused(divisor, shown):
    with pytest.raises(ZeroDivisionError, match=f"1ep cannot be divided by {shown}, which is zero"):
        Time("1ep") / divisor


def test_a_time_is_unequal_to_what_is_no_time():
    assert Time.parse("1ep") != 1
    assert Time.parse("1ep") != None  # noqa: E711


def test_only_seconds_have_seconds():
    assert Time.parse("1m").seconds == 60.0
    with pytest.raises(TypeError, match="1ep is not in seconds"):
        _ = Time.parse("1ep").seconds


def test_a_time_is_frozen_and_can_be_pickled():
    time = Time.parse("1/3dur")

    with pytest.raises(AttributeError):
        time.value = 2
    assert pickle.loads(pickle.dumps(time)) == time


def test_a_time_is_not_compared_with_a_string():
    with pytest.raises(TypeError, match=r"cannot be compared with a string: use Time\('1ep'\)"):
        Time("1ep") == "1ep"  # noqa: B015
    with pytest.raises(TypeError):
        Time("1ep") < "2ep"  # noqa: B015
