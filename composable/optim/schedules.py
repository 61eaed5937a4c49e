"""Learning rate schedules: multipliers of the learning rate, as pure functions of time.

Call a schedule with anything that has the time: the state of a run, or a `Clock` in your own loop.
The learning rate of batch k is the initial one times the value of the schedule at k. Schedules are
stateless.

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
            f"{attribute.name}={value!r} must be a number. Pass durations by keyword, such as "
            "warmup='1ep'."
        )
    if not math.isfinite(value):
        raise ValueError(f"{attribute.name}={value!r} must be finite.")


@attrs.frozen
class Schedule:
    """A multiplier of the learning rate as a function of time.

    During the warm-up it rises linearly from 0 to `start`. Subclasses define the values after the
    warm-up in `after_warmup`.
    """

    warmup: Time = attrs.field(default=_NO_WARMUP, converter=_warmup, kw_only=True)

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
        whole = clock.max_duration
        if whole is None or not self.warmup.value:
            return False
        try:
            ramp = _in_unit_of(clock, self.warmup, whole)
        except ValueError:  # other units
            return False
        return bool(ramp > progress(clock, whole)[1])

    @property
    def start(self) -> float:
        """The multiplier at the end of the warm-up."""
        return 1.0

    def check_warmup(self, clock: HasTime) -> None:
        """Raise a ValueError if the warm-up is too long for the schedule."""

    def after_warmup(self, clock: HasTime) -> float:
        """Return the multiplier after the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must implement after_warmup(clock).")

    def fraction(self, clock: HasTime, duration: Time) -> float:
        """Return the elapsed fraction of the time between the warm-up and `duration`, in [0, 1]."""
        done, total = progress(clock, duration)
        ramp = _in_unit_of(clock, self.warmup, duration)
        if total <= ramp:  # at the end of the warm-up, the first value
            return float(done > ramp)
        return min(float((done - ramp) / (total - ramp)), 1.0)


def _in_unit_of(clock: HasTime, warmup: Time, duration: Time) -> int | Fraction:
    """Return the warm-up in the unit in which `progress` measures `duration`."""
    if not warmup.value:
        return 0
    unit, ours = _unit_of(clock, duration), _unit_of(clock, warmup)
    counted = {TimeUnit.BATCH, TimeUnit.EPOCH} if clock.epoch_length else set()
    if ours is unit or {ours, unit} <= counted:
        return progress(clock, warmup)[1]
    raise ValueError(
        f"warmup={str(warmup)!r} and duration={str(duration)!r} cannot be related in this run: "
        "use the same unit, or epochs and batches with a loader that has a length."
    )


def _check_outlasts(clock: HasTime, warmup: Time, duration: Time) -> None:
    """Reject a warm-up that is longer than a part of the run; the run itself may be extended."""
    if duration == _WHOLE_RUN and duration.unit is _WHOLE_RUN.unit:
        return
    total = progress(clock, duration)[1]
    if _in_unit_of(clock, warmup, duration) > total:
        raise ValueError(
            f"warmup={str(warmup)!r} is longer than duration={str(duration)!r}, which includes it; "
            "pass a shorter warmup or a longer duration."
        )


def _unit_of(clock: HasTime, time: Time) -> TimeUnit:
    """Return the unit of a time; the unit of a fraction of the run is that of the run."""
    whole = clock.max_duration
    return whole.unit if time.unit is TimeUnit.DURATION and whole else time.unit


def _check_rises(clock: HasTime, warmup: Time) -> None:
    """Reject a warm-up in a unit without fractions: it would stay 0 until the end of the first."""
    unit = _unit_of(clock, warmup)
    if unit is TimeUnit.ITERATION or (unit is TimeUnit.EPOCH and not clock.epoch_length):
        raise ValueError(
            f"warmup={str(warmup)!r} cannot be measured in {unit.plural} of unknown length: use "
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
        """Return the constant."""
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

    def check_warmup(self, clock: HasTime) -> None:
        """Raise a ValueError if the warm-up is longer than `duration`."""
        _check_outlasts(clock, self.warmup, self.duration)

    def after_warmup(self, clock: HasTime) -> float:
        """Interpolate linearly from `alpha_i` to `alpha_f`."""
        done = self.fraction(clock, self.duration)
        return self.alpha_i + done * (self.alpha_f - self.alpha_i)


@attrs.frozen
class Cosine(Schedule):
    """See `cosine`."""

    alpha_f: float = attrs.field(default=0.0, validator=_finite)
    duration: Time = attrs.field(default=_WHOLE_RUN, converter=_duration)

    def check_warmup(self, clock: HasTime) -> None:
        """Raise a ValueError if the warm-up is longer than `duration`."""
        _check_outlasts(clock, self.warmup, self.duration)

    def after_warmup(self, clock: HasTime) -> float:
        """Decay from 1 to `alpha_f` along half a cosine."""
        done = self.fraction(clock, self.duration)
        return self.alpha_f + (1 - self.alpha_f) * (1 + math.cos(math.pi * done)) / 2


def _positive(_: object, attribute: "attrs.Attribute[Time]", value: Time) -> None:
    if not value.value:
        raise ValueError(f"{attribute.name}={str(value)!r} must be positive.")


@attrs.frozen
class Step(Schedule):
    """See `step`."""

    step_size: Time = attrs.field(converter=_step_size, validator=_positive)
    gamma: float = attrs.field(default=0.1, validator=_finite)

    def after_warmup(self, clock: HasTime) -> float:
        """Return `gamma` to the power of the number of completed steps."""
        done, size = progress(clock, self.step_size)
        return float(self.gamma ** int(done // size))


def constant(alpha: float = 1.0, *, warmup: TimeLike = "0ba") -> Schedule:
    r"""Keep a constant multiplier: $\alpha$.

    Args:
        alpha: The multiplier.
        warmup: The duration of the linear warm-up from 0 to `alpha`.

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
    r"""Change linearly: $\alpha_i + \tau (\alpha_f - \alpha_i)$, with $\tau$ from 0 to 1.

    Args:
        alpha_i: The initial value.
        alpha_f: The final value, kept after `duration`.
        duration: The time from the start of the run until the final value is reached, including
            the warm-up.
        warmup: The duration of the linear warm-up from 0 to `alpha_i`; $\tau$ is 0 at its end. It
            must not be longer than `duration`.

    Example:
        >>> from composable import Clock
        >>> linear(duration="0.5dur")(Clock.at(batch=1, max_duration="8ba"))
        0.75
    """
    return Linear(alpha_i, alpha_f, duration, warmup=warmup)


def cosine(
    alpha_f: float = 0.0, *, duration: TimeLike = "1dur", warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Decay along a cosine: $\alpha_f + (1 - \alpha_f)(1 + \cos \pi\tau) / 2$, $\tau$ in [0, 1].

    Args:
        alpha_f: The final value, kept after `duration`; the initial value is 1.
        duration: The time from the start of the run until the final value is reached, including
            the warm-up.
        warmup: The duration of the linear warm-up from 0 to 1; $\tau$ is 0 at its end. It must not
            be longer than `duration`.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts",
    ICLR 2017, https://arxiv.org/abs/1608.03983 (one cycle, without restarts).

    Example:
        >>> from composable import Clock
        >>> round(cosine()(Clock.at(batch=5, max_duration="10ba")), 3)
        0.5
    """
    return Cosine(alpha_f, duration, warmup=warmup)


def step(step_size: TimeLike, gamma: float = 0.1, *, warmup: TimeLike = "0ba") -> Schedule:
    r"""Decay in steps: $\gamma^{\lfloor t / \text{step\_size} \rfloor}$.

    Args:
        step_size: The duration of each step, positive.
        gamma: The factor of each step.
        warmup: The duration of the linear warm-up from 0 to 1.

    Example:
        >>> from composable import Clock
        >>> step("2ba", 0.5)(Clock.at(batch=5, max_duration="10ba"))
        0.25
    """
    return Step(step_size, gamma, warmup=warmup)
