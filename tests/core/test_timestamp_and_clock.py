"""What a run has done, and how much of it that is."""

from fractions import Fraction

import pytest

from composable import Clock, Timestamp


def test_a_batch_counts_everywhere_but_in_epochs():
    now = Timestamp().next_batch(samples=32, tokens=640, seconds=0.5)
    now = now.next_batch(samples=8, tokens=160, seconds=0.25)

    assert (now.batch, now.sample, now.token) == (2, 40, 800)
    assert (now.batch_in_epoch, now.sample_in_epoch, now.token_in_epoch) == (2, 40, 800)
    assert (now.total_wct, now.epoch_wct, now.batch_wct) == (0.75, 0.75, 0.25)
    assert (now.epoch, now.iteration) == (0, 0)


def test_an_iteration_starts_its_own_count_anew():
    now = Timestamp().next_epoch().next_epoch().next_iteration()

    assert (now.iteration, now.epoch, now.epoch_in_iteration) == (1, 2, 0)


def test_a_timestamp_alone_has_no_fraction():
    with pytest.raises(TypeError, match=r"use Clock\.fraction_of"):
        Timestamp().get("dur")


def test_a_timestamp_is_frozen():
    with pytest.raises(AttributeError):
        Timestamp().batch = 3


def test_a_clock_measures_epochs_in_batches_where_it_can():
    clock = Clock.at(batch=7, max_duration="2ep", epoch_length=5)

    assert (clock.timestamp.epoch, clock.timestamp.batch_in_epoch) == (1, 2)
    assert clock.fraction_of("1dur") == Fraction(7, 10)
    assert clock.fraction_of("1ep") == Fraction(7, 5)
    assert clock.fraction_of("14ba") == Fraction(1, 2)


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


def test_the_length_of_a_run_is_no_fraction_of_itself():
    with pytest.raises(ValueError, match=r"max_duration='0\.5dur' is a fraction of itself"):
        Clock(Timestamp(), "0.5dur")


def test_without_a_length_of_the_epoch_only_whole_epochs_count():
    clock = Clock(Timestamp(epoch=1, batch=7, batch_in_epoch=2), "2ep")

    assert clock.fraction_of("1dur") == Fraction(1, 2)


def test_a_fraction_of_nothing_is_refused():
    with pytest.raises(ValueError, match="length='0ba' is zero"):
        Clock.at(batch=1, max_duration="3ba").fraction_of("0ba")


def test_a_fraction_of_an_endless_run_is_refused():
    with pytest.raises(ValueError, match="1dur is undefined: the run has no max_duration"):
        Clock(Timestamp()).fraction_of("1dur")
