"""What all schedules share: a linear warm-up, and the measurement of times against a run."""

import math
from collections.abc import Callable
from fractions import Fraction
from numbers import Real
from typing import Any

import attrs

from composable.core.time import (
    HasTime,
    Time,
    TimeLike,
    TimeUnit,
    check_time,
    counts_whole,
    progress,
    share_of_run,
)

_NO_WARMUP = Time(0, TimeUnit.BATCH)
WHOLE_RUN = Time(1, TimeUnit.DURATION)


def as_warmup(value: TimeLike) -> Time:
    """Parse the argument `warmup`."""
    return check_time("warmup", value)


def as_duration(value: TimeLike) -> Time:
    """Parse the argument `duration`."""
    return check_time("duration", value)


def positive_time(_: object, attribute: "attrs.Attribute[Time]", value: Time) -> None:
    """Validate that a time is above 0."""
    if not value.value:
        raise ValueError(f"{attribute.name}={str(value)!r} must be positive.")


def finite(_: object, attribute: "attrs.Attribute[float]", value: Any) -> None:
    """Validate that a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{attribute.name}={value!r} must be a number. Pass durations by keyword, such as "
            "warmup='1ep'."
        )
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name}={value!r} must be finite.")


def at_least(least: float, *, above: bool = False) -> Callable[[object, Any, Any], None]:
    """Return a validator of a finite number of at least `least`, or above it."""

    def validate(instance: object, attribute: "attrs.Attribute[float]", value: Any) -> None:
        finite(instance, attribute, value)
        if value < least or (above and value == least):
            allowed = f"above {least:g}" if above else f"at least {least:g}"
            raise ValueError(f"{attribute.name}={value!r} must be {allowed}.")

    return validate


@attrs.frozen
class Schedule:
    """A multiplier of the learning rate as a function of time.

    During the warm-up it rises linearly from 0 to `start`. Subclasses define the values after the
    warm-up in `after_warmup`. A field `duration` that is a `Time` includes the warm-up.
    """

    warmup: Time = attrs.field(default=_NO_WARMUP, converter=as_warmup, kw_only=True)

    def __call__(self, clock: HasTime) -> float:
        """Return the multiplier at the time of `clock`.

        Raises:
            ValueError: The warm-up is in epochs, and the length of an epoch is unknown; or it is
                longer than `duration`.
        """
        done, ramp = progress(clock, self.warmup)
        if ramp:
            _check_rises(clock, self.warmup)
            self.check_warmup(clock)
        if done < ramp:
            return self.start * float(done / ramp)
        return self.after_warmup(clock)

    def outlasts(self, clock: HasTime) -> bool:
        """Return whether the warm-up is longer than the run, as far as that is known."""
        return (share_of_run(clock, self.warmup) or 0) > 1

    def counts_whole(self, clock: HasTime) -> bool:
        """Return whether the duration is a number of epochs or iterations of unknown length."""
        duration = getattr(self, "duration", None)
        return isinstance(duration, Time) and counts_whole(clock, duration)

    @property
    def start(self) -> float:
        """The multiplier at the end of the warm-up."""
        return 1.0

    def check_warmup(self, clock: HasTime) -> None:
        """Raise a ValueError if it is longer than `duration`, or not comparable to `period`."""
        duration, period = (getattr(self, name, None) for name in ("duration", "period"))
        if isinstance(period, Time):  # of a class of the user it may be anything
            self.since_warmup(clock, period)
        if not isinstance(duration, Time):
            return
        length = in_unit_of(clock, self.warmup, duration)
        of_run = duration == WHOLE_RUN and duration.unit is WHOLE_RUN.unit  # it may be extended
        if not of_run and length > progress(clock, duration)[1]:
            raise ValueError(
                f"warmup={str(self.warmup)!r} is longer than duration={str(duration)!r}, which "
                "includes it; pass a shorter warmup or a longer duration."
            )

    def after_warmup(self, clock: HasTime) -> float:
        """Return the multiplier after the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must implement after_warmup(clock).")

    def fraction(self, clock: HasTime, duration: Time) -> float:
        """Return the elapsed fraction of the time between the warm-up and `duration`, in [0, 1]."""
        done, total = progress(clock, duration)
        ramp = in_unit_of(clock, self.warmup, duration)
        if total <= ramp:  # at the end of the warm-up, the first value
            return float(done > ramp)
        return min(float((done - ramp) / (total - ramp)), 1.0)

    def since_warmup(self, clock: HasTime, period: Time) -> tuple[int | Fraction | float, Any]:
        """Return the time since the end of the warm-up, and `period`, in one unit."""
        done, size = progress(clock, period)
        return done - in_unit_of(clock, self.warmup, period, whole="period"), size


def in_unit_of(
    clock: HasTime, part: Time, duration: Time, *, name: str = "warmup", whole: str = "duration"
) -> int | Fraction:
    """Return a time in the unit in which `progress` measures `duration`."""
    if not part.value:
        return 0
    unit, ours = _unit_of(clock, duration), _unit_of(clock, part)
    counted = {TimeUnit.BATCH, TimeUnit.EPOCH} if clock.epoch_length else set()
    if ours is unit or {ours, unit} <= counted:
        return progress(clock, part)[1]
    raise ValueError(
        f"{name}={str(part)!r} and {whole}={str(duration)!r} cannot be related in this run: "
        "use the same unit, or epochs and batches with a loader that has a length."
    )


def _unit_of(clock: HasTime, time: Time) -> TimeUnit:
    """Return the unit of a time; a fraction of the run has the run's unit."""
    whole = clock.max_duration
    return whole.unit if time.unit is TimeUnit.DURATION and whole else time.unit


def _check_rises(clock: HasTime, warmup: Time) -> None:
    """Reject a warm-up in a unit without fractions: it would stay 0 until the end of the first."""
    unit = _unit_of(clock, warmup)
    if counts_whole(clock, warmup):
        raise ValueError(
            f"warmup={str(warmup)!r} cannot be measured in {unit.plural} of unknown length: use "
            "batches, such as '100ba', or epochs with a loader that has a length."
        )
