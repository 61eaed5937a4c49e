"""Intervals of callbacks that act between batches."""

from typing import Any

import attrs

from composable.core.event import Event
from composable.core.intervals import Interval
from composable.core.state import State
from composable.core.time import Time, Timestamp, check_time, progress


def check_length(name: str, length: Any) -> Time:
    """Parse a time that is greater than 0.

    Raises:
        ValueError: It is 0, or not a valid time.
        TypeError: It is not a time.
    """
    time = check_time(name, length)
    if not time.value:
        raise ValueError(f"{name}={length!r} must be greater than 0, such as '10ba'.")
    return time


def has_completed(interval: Interval, state: State, event: Event) -> bool:
    """Return whether the last batch, or the end of an epoch after it, completed an interval.

    Args:
        interval: A time, a function `(state, event) -> bool`, or None for never.
        state: The state between two batches.
        event: `BATCH_START`; or `BATCH_END`, where the epoch is not counted yet, and then
            `EPOCH_END`, which is due only for an epoch of unknown length.
    """
    if not isinstance(interval, Time):
        return interval is not None and bool(interval(state, event))
    then = state.previous_timestamp
    if event is Event.EPOCH_END:
        if state.epoch_length is not None:
            return False
        then = attrs.evolve(state.timestamp, epoch=state.timestamp.epoch - 1)
    now, length = progress(state, interval)
    before, _ = progress(state, interval, then)
    return before // length != now // length


def has_passed(state: State, length: Time, since: Timestamp) -> bool:
    """Return whether a time has passed since a timestamp."""
    now, total = progress(state, length)
    before, _ = progress(state, length, since)
    return now - before >= total
