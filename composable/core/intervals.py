"""Intervals at which evaluation, checkpoints and logging are due."""

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_length, crossed, progress

Interval: TypeAlias = Time | Callable[[State, Event], bool] | None
IntervalLike: TypeAlias = TimeLike | Callable[[State, Event], bool] | None


def check_interval(name: str, interval: Any) -> Interval:
    """Convert an interval; a function `(state, event) -> bool` and None, for never, pass through.

    Raises:
        TypeError: `interval` is not a time.
        ValueError: `interval` is zero, or not a valid time.
    """
    if interval is None or (callable(interval) and not isinstance(interval, Time)):
        return interval
    return check_length(name, interval, advice="; None means never")


def is_due(
    interval: Interval,
    before: State,
    state: State,
    event: Event,
    iteration_length: int | None = None,
) -> bool:
    """Return whether an interval is completed between two states.

    Args:
        interval: A time, a function `(state, event) -> bool`, or None for never.
        before: The state before the batch (or the end of the epoch).
        state: The state after it.
        event: `BATCH_END` or `EPOCH_END`.
        iteration_length: Epochs in an iteration.

    Example:
        >>> from composable import Event, State, Time, Timestamp
        >>> from composable.core.intervals import is_due
        >>> before = State(torch.nn.Linear(1, 1), timestamp=Timestamp(batch=99))
        >>> after = before.evolve(timestamp=Timestamp(batch=100))
        >>> is_due(Time.parse("50ba"), before, after, Event.BATCH_END)
        True
    """
    if interval is None:
        return False
    if not isinstance(interval, Time):
        return bool(interval(state, event))
    if interval.unit not in (TimeUnit.EPOCH, TimeUnit.ITERATION):
        return crossed(before, state, interval)  # the end of an epoch may complete it too
    if event is not Event.EPOCH_END:
        return False
    now, count = state.timestamp, int(interval.value)
    if interval.unit is TimeUnit.ITERATION:  # due with its last epoch
        return now.epoch_in_iteration == iteration_length and not (now.iteration + 1) % count
    return not now.epoch % count


def completes(interval: Interval, state: State, event: Event = Event.BATCH_START) -> bool:
    """Return whether the batch in progress completes an interval.

    Callbacks that measure during a step use it, to log at the end of that step. How many samples,
    tokens and seconds a batch takes is known only after it, and so is the last batch of an epoch of
    unknown length. In these units, the batch after the one that completed the interval is due.

    Args:
        interval: A time, a function `(state, event) -> bool`, or None for never.
        state: The state between `BATCH_START` and `AFTER_ZERO_GRAD`.
        event: The event that is passed to a function.

    Example:
        >>> from composable import State, Time, Timestamp
        >>> from composable.core.intervals import completes
        >>> ninth = State(torch.nn.Linear(1, 1), timestamp=Timestamp(batch=9))
        >>> completes(Time("10ba"), ninth), completes(Time("4ba"), ninth)
        (True, False)
    """
    if interval is None:
        return False
    if not isinstance(interval, Time):
        return bool(interval(state, event))
    unit, whole = interval.unit, state.max_duration
    if unit is TimeUnit.DURATION and whole is not None:
        unit = whole.unit
    before, after = state.previous_timestamp, state.timestamp
    if unit is TimeUnit.BATCH or (unit is TimeUnit.EPOCH and state.epoch_length is not None):
        before, after = after, after.next_batch()
    then, step = progress(state, interval, before)
    now, _ = progress(state, interval, after)
    return then // step != now // step


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
