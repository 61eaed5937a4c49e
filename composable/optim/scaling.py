"""Train the same schedule in a fraction of the time."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import attrs

from composable._support.checks import check_flag, check_range
from composable.core.time import HasTime, Time, Timestamp, TimeUnit
from composable.optim.per_name import PerGroup, PerOption
from composable.optim.schedule import Schedule

_COUNTS = tuple(name for name, kind in Timestamp.__annotations__.items() if kind in (int, float))


@attrs.frozen
class ScaledSchedule(Schedule):
    """See `scale_schedule`."""

    schedule: Callable[[HasTime], float] = attrs.field(kw_only=True)
    ratio: Fraction = attrs.field(kw_only=True)

    def __call__(self, clock: HasTime) -> float:
        """Return the value of the schedule at the scaled time."""
        value: Any = self.schedule(_Stretched.of(clock, 1 / self.ratio))
        return float(value) if isinstance(value, Fraction) else value

    def counts_whole(self, clock: HasTime) -> bool:
        """Return whether the duration is a number of epochs of unknown length."""
        return isinstance(self.schedule, Schedule) and self.schedule.counts_whole(clock)


@attrs.frozen
class _Stretched:
    """A clock whose counts are all multiplied, the duration of the run included."""

    timestamp: Timestamp
    max_duration: Time | None
    epoch_length: int | None

    @classmethod
    def of(cls, clock: HasTime, factor: Fraction) -> "_Stretched":
        now, whole = clock.timestamp, clock.max_duration
        counts: Any = {name: getattr(now, name) * factor for name in _COUNTS}
        return cls(
            attrs.evolve(now, **counts),
            None if whole is None else _stretch(whole, factor),
            clock.epoch_length,
        )


def _stretch(time: Time, factor: Fraction) -> Time:
    """Multiply a time; unlike the product of a `Time`, the result may be a fraction of a batch."""
    if time.unit is TimeUnit.DURATION:
        return time
    value, stretched = Fraction(time.value * factor), object.__new__(Time)
    exact = value.numerator if value.denominator == 1 else value
    stretched.__attrs_init__(exact, time.unit)  # type: ignore[attr-defined]
    return stretched


def scale_schedule(
    schedule: Callable[[HasTime], float], ratio: float | Fraction, *, scale_warmup: bool = True
) -> Callable[[HasTime], float]:
    """Compress or stretch a schedule: its value at time $t$ is `schedule`'s at $t / r$.

    All times of the schedule are multiplied by the ratio $r$. Fractions of the run stay the same
    fractions. Pass the run a `max_duration` that is scaled as well.

    Args:
        schedule: A schedule, or any function of a clock.
        ratio: The ratio $r$ of the new duration to `schedule`'s, above 0: with 0.5, a run of half
            the length has all changes of the learning rate.
        scale_warmup: Whether the warm-up is scaled too. False keeps its length.

    Returns:
        A schedule.

    Raises:
        TypeError: An argument is of the wrong type; or `scale_warmup` is False, and `schedule` has
            no warm-up.
        ValueError: `ratio` is not above 0.

    Example:
        >>> from composable import Clock
        >>> from composable.optim import scale_schedule, step
        >>> schedule = scale_schedule(step("30ep"), 0.5)
        >>> [
        ...     round(schedule(Clock.at(batch=k, max_duration="45ep", epoch_length=1)), 3)
        ...     for k in (14, 15, 29, 30)
        ... ]
        [1.0, 0.1, 0.1, 0.01]
    """
    if not callable(schedule) or isinstance(schedule, type):
        raise TypeError(f"schedule={schedule!r} must be a schedule, such as cosine().")
    exact = ratio if isinstance(ratio, Fraction) else _exact(ratio)
    check_flag("scale_warmup", scale_warmup)
    if isinstance(schedule, (PerGroup, PerOption)):
        return schedule.map(lambda one: scale_schedule(one, exact, scale_warmup=scale_warmup))
    if not isinstance(schedule, Schedule) or isinstance(schedule, ScaledSchedule):
        if not scale_warmup:
            raise TypeError(
                f"scale_warmup=False requires a schedule with its own warm-up, got "
                f"{schedule!r}: pass a schedule such as cosine(warmup='5ep'), scaled once."
            )
        return ScaledSchedule(schedule=schedule, ratio=exact)
    warmup = schedule.warmup
    if not scale_warmup:
        schedule = attrs.evolve(schedule, warmup=_stretch(warmup, 1 / exact))
    return ScaledSchedule(
        schedule=schedule,
        ratio=exact,
        warmup=_stretch(warmup, exact) if scale_warmup else warmup,
    )


def _exact(ratio: Any) -> Fraction:
    check_range("ratio", ratio, 0, ends="()")
    return Fraction(repr(float(ratio)))  # 0.1 is one tenth, as in a Time
