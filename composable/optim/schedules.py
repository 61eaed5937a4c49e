"""Schedules: what a learning rate is multiplied by, as a function of time.

A schedule is a value that is called with anything that has the time: the state of a run, or a
`Clock` in your own loop. The learning rate of batch k is the initial one times the schedule at
k; nothing is remembered between the calls.

Example:
    >>> from composable import Clock
    >>> from composable.optim import linear
    >>> schedule = linear(1.0, 0.0, warmup="2ba")
    >>> [round(schedule(Clock.at(batch=k, max_duration="6ba")), 2) for k in range(7)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
"""

import math
from fractions import Fraction
from numbers import Real
from typing import Any

import attrs

from composable.core.time import HasTime, Time, TimeLike, TimeUnit, check_time, progress

__all__ = [
    "Constant",
    "Cosine",
    "Linear",
    "Schedule",
    "Step",
    "constant",
    "cosine",
    "linear",
    "step",
]

_NO_WARMUP = Time(0, TimeUnit.BATCH)
_WHOLE_RUN = Time(1, TimeUnit.DURATION)


def _warmup(value: TimeLike) -> Time:
    return check_time("warmup", value)


def _duration(value: TimeLike) -> Time:
    return check_time("duration", value)


def _step_size(value: TimeLike) -> Time:
    return check_time("step_size", value)


def _finite(_: object, attribute: "attrs.Attribute[float]", value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{attribute.name}={value!r} must be a number. Lengths are given by name, such as "
            "warmup='1ep'."
        )
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name}={value!r} must be finite.")


@attrs.frozen
class Schedule:
    """A multiplier of the learning rate as a function of time.

    During the warm-up it rises linearly from 0 to the value at which the schedule itself
    starts; a subclass says in `after_warmup` what comes then.
    """

    warmup: Time = attrs.field(default=_NO_WARMUP, converter=_warmup, kw_only=True)

    def __call__(self, clock: HasTime) -> float:
        """The multiplier at the time of `clock`.

        Raises:
            ValueError: The warm-up is in epochs, and how long an epoch is isn't known.
        """
        done, ramp = progress(clock, self.warmup)
        if ramp:
            _check_rises(clock, self.warmup)
        if done < ramp:
            return self.start * float(done / ramp)
        return self.after_warmup(clock)

    @property
    def start(self) -> float:
        """The value to which the warm-up rises."""
        return 1.0

    def after_warmup(self, clock: HasTime) -> float:
        """The multiplier once the warm-up is over."""
        raise NotImplementedError(f"{type(self).__name__} must implement after_warmup(clock).")

    def fraction(self, clock: HasTime, duration: Time) -> float:
        """How far it is from the end of the warm-up to `duration`, from 0.0 to 1.0."""
        done, total = progress(clock, duration)
        ramp = _in_unit_of(clock, self.warmup, duration)
        if total <= ramp:
            return 1.0
        return min(float((done - ramp) / (total - ramp)), 1.0)


def _in_unit_of(clock: HasTime, warmup: Time, duration: Time) -> int | Fraction:
    """The warm-up in the unit in which `progress` measures `duration`."""
    if not warmup.value:
        return 0
    unit, ours = _unit_of(clock, duration), _unit_of(clock, warmup)
    counted = {TimeUnit.BATCH, TimeUnit.EPOCH} if clock.epoch_length else set()
    if ours is unit or {ours, unit} <= counted:
        return progress(clock, warmup)[1]
    raise ValueError(
        f"warmup={str(warmup)!r} and duration={str(duration)!r} of this run can't be related: "
        "give both in one unit, or epochs and batches with a loader that has a length."
    )


def _unit_of(clock: HasTime, time: Time) -> TimeUnit:
    """The unit in which a time counts: for a fraction of the run, that of the run."""
    whole = clock.max_duration
    return whole.unit if time.unit is TimeUnit.DURATION and whole else time.unit


def _check_rises(clock: HasTime, warmup: Time) -> None:
    """Refuse a warm-up in what is only counted whole: it would be 0 up to the end of the first."""
    unit = _unit_of(clock, warmup)
    if unit is TimeUnit.ITERATION or (unit is TimeUnit.EPOCH and not clock.epoch_length):
        raise ValueError(
            f"warmup={str(warmup)!r} can't rise within {unit.plural} of unknown length: give it in "
            "batches, such as '100ba', or epochs with a loader that has a length."
        )


@attrs.frozen
class Constant(Schedule):
    """See `constant`."""

    alpha: float = attrs.field(default=1.0, validator=_finite)

    @property
    def start(self) -> float:
        """The constant."""
        return self.alpha

    def after_warmup(self, clock: HasTime) -> float:
        """The constant."""
        return self.alpha


@attrs.frozen
class Linear(Schedule):
    """See `linear`."""

    alpha_i: float = attrs.field(default=1.0, validator=_finite)
    alpha_f: float = attrs.field(default=0.0, validator=_finite)
    duration: Time = attrs.field(default=_WHOLE_RUN, converter=_duration)

    @property
    def start(self) -> float:
        """The first value."""
        return self.alpha_i

    def after_warmup(self, clock: HasTime) -> float:
        """From `alpha_i` to `alpha_f` on a line."""
        done = self.fraction(clock, self.duration)
        return self.alpha_i + done * (self.alpha_f - self.alpha_i)


@attrs.frozen
class Cosine(Schedule):
    """See `cosine`."""

    alpha_f: float = attrs.field(default=0.0, validator=_finite)
    duration: Time = attrs.field(default=_WHOLE_RUN, converter=_duration)

    def after_warmup(self, clock: HasTime) -> float:
        """From 1 to `alpha_f` on half a cosine."""
        done = self.fraction(clock, self.duration)
        return self.alpha_f + (1 - self.alpha_f) * (1 + math.cos(math.pi * done)) / 2


def _positive(_: object, attribute: "attrs.Attribute[Time]", value: Time) -> None:
    if not value.value:
        raise ValueError(f"{attribute.name}={str(value)!r} must be longer than nothing.")


@attrs.frozen
class Step(Schedule):
    """See `step`."""

    step_size: Time = attrs.field(converter=_step_size, validator=_positive)
    gamma: float = attrs.field(default=0.1, validator=_finite)

    def after_warmup(self, clock: HasTime) -> float:
        """`gamma` to the power of the steps taken."""
        done, size = progress(clock, self.step_size)
        return float(self.gamma ** int(done // size))


def constant(alpha: float = 1.0, *, warmup: TimeLike = "0ba") -> Schedule:
    r"""A constant multiplier: $\alpha$.

    Args:
        alpha: The multiplier.
        warmup: How long it rises to `alpha` from 0 first.

    Example:
        >>> from composable import Clock
        >>> constant(0.5, warmup="4ba")(Clock.at(batch=2, max_duration="10ba"))
        0.25
    """
    return Constant(alpha, warmup=warmup)


def linear(
    alpha_i: float = 1.0,
    alpha_f: float = 0.0,
    *,
    duration: TimeLike = "1dur",
    warmup: TimeLike = "0ba",
) -> Schedule:
    r"""A line: $\alpha_i + \tau (\alpha_f - \alpha_i)$, $\tau$ from 0 to 1.

    Args:
        alpha_i: The first value.
        alpha_f: The last value, kept from `duration` on.
        duration: When the last value is reached, counted from the start of the run.
        warmup: How long it rises to `alpha_i` from 0 first; the line begins then.

    Example:
        >>> from composable import Clock
        >>> linear(duration="0.5dur")(Clock.at(batch=1, max_duration="8ba"))
        0.75
    """
    return Linear(alpha_i, alpha_f, duration, warmup=warmup)


def cosine(
    alpha_f: float = 0.0, *, duration: TimeLike = "1dur", warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Half a cosine: $\alpha_f + (1 - \alpha_f)(1 + \cos \pi\tau) / 2$, $\tau$ from 0 to 1.

    Args:
        alpha_f: The last value, kept from `duration` on; the first is 1.
        duration: When the last value is reached, counted from the start of the run.
        warmup: How long it rises to 1 from 0 first; the cosine begins then.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts",
    ICLR 2017, https://arxiv.org/abs/1608.03983 (one cycle, without restarts).

    Example:
        >>> from composable import Clock
        >>> round(cosine()(Clock.at(batch=5, max_duration="10ba")), 3)
        0.5
    """
    return Cosine(alpha_f, duration, warmup=warmup)


def step(step_size: TimeLike, gamma: float = 0.1, *, warmup: TimeLike = "0ba") -> Schedule:
    r"""Stairs: $\gamma^{\lfloor t / \text{step\_size} \rfloor}$.

    Args:
        step_size: How long each step lasts, counted from the start of the run; above 0.
        gamma: What each step multiplies by.
        warmup: How long it rises to 1 from 0 first.

    Example:
        >>> from composable import Clock
        >>> step("2ba", 0.5)(Clock.at(batch=5, max_duration="10ba"))
        0.25
    """
    return Step(step_size, gamma, warmup=warmup)
