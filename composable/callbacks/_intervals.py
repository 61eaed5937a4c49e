"""Intervals of callbacks that act between batches."""

from typing import Any

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


def has_passed(state: State, length: Time, since: Timestamp) -> bool:
    """Return whether a time has passed since a timestamp."""
    now, total = progress(state, length)
    before, _ = progress(state, length, since)
    return now - before >= total
