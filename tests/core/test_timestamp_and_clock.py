"""What a run has done, and how much of it that is."""

from fractions import Fraction

import pytest

from composable import Clock, Timestamp


def test_an_iteration_starts_its_own_count_anew():
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
