"""Warm-ups that are as long as the duration of a schedule, or longer."""

import pytest

from composable import Clock
from composable.optim import cosine, linear

BUILD = pytest.mark.parametrize("build", [linear, cosine])


def values(schedule, count=6, **clock):
    clock = {"max_duration": "8ba", "epoch_length": 2} | clock
    return [schedule(Clock.at(batch=k, **clock)) for k in range(count)]


@BUILD
@pytest.mark.parametrize(
    ("warmup", "duration"), [("4ba", "4ba"), ("2ep", "4ba"), ("4ba", "0.5dur")]
)
def test_warmup_as_long_as_the_duration_reaches_the_first_value(build, warmup, duration):
    schedule = build(warmup=warmup, duration=duration)

    assert values(schedule) == pytest.approx([0, 0.25, 0.5, 0.75, 1, 0])


@BUILD
@pytest.mark.parametrize(
    ("warmup", "duration"), [("5ba", "4ba"), ("3ep", "4ba"), ("4ba", "0.4dur")]
)
def test_rejects_warmup_longer_than_the_duration(build, warmup, duration):
    schedule = build(warmup=warmup, duration=duration)

    with pytest.raises(ValueError, match=f"warmup='{warmup}' is longer than duration="):
        values(schedule, 1)


@BUILD
def test_warmup_may_outlast_the_run_which_may_be_extended(build):
    assert values(build(warmup="10ba"), 2, max_duration="5ba") == pytest.approx([0, 0.1])
