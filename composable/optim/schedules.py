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
from collections.abc import Callable
from fractions import Fraction
from numbers import Real
from typing import Any

import attrs

from composable.core.time import HasTime, Time, TimeLike, check_time, progress, reached
from composable.optim.schedule import (
    WHOLE_RUN,
    Schedule,
    as_duration,
    at_least,
    finite,
    in_unit_of,
)


def _decay(value: TimeLike) -> Time:
    return check_time("decay", value)


def _optional_duration(value: TimeLike | None) -> Time | None:
    return None if value is None else check_time("duration", value)


@attrs.frozen
class Constant(Schedule):
    """See `constant`."""

    alpha: float = attrs.field(default=1.0, validator=finite)
    duration: Time | None = attrs.field(default=None, converter=_optional_duration)

    @property
    def start(self) -> float:
        """The constant."""
        return self.alpha

    def after_warmup(self, clock: HasTime) -> float:
        """Return the constant, or 1 after `duration`."""
        over = self.duration is not None and reached(clock, self.duration)
        return 1.0 if over else self.alpha


@attrs.frozen
class Linear(Schedule):
    """See `linear`."""

    alpha_i: float = attrs.field(default=1.0, validator=finite)
    alpha_f: float = attrs.field(default=0.0, validator=finite)
    duration: Time = attrs.field(default=WHOLE_RUN, converter=as_duration)

    @property
    def start(self) -> float:
        """The first value."""
        return self.alpha_i

    def after_warmup(self, clock: HasTime) -> float:
        """Interpolate linearly from `alpha_i` to `alpha_f`."""
        done = self.fraction(clock, self.duration)
        return self.alpha_i + done * (self.alpha_f - self.alpha_i)


@attrs.frozen
class Decay(Schedule):
    """A decay from 1 to `alpha_f` over a duration; `remaining` defines its shape."""

    alpha_f: float = attrs.field(default=0.0, validator=finite)
    duration: Time = attrs.field(default=WHOLE_RUN, converter=as_duration)

    def after_warmup(self, clock: HasTime) -> float:
        """Decay from 1 to `alpha_f`."""
        done = self.fraction(clock, self.duration)
        return self.alpha_f + (1 - self.alpha_f) * self.remaining(done)

    def remaining(self, done: float) -> float:
        """Return the share of the decay that remains, from 1 at 0 to 0 at 1."""
        raise NotImplementedError(f"{type(self).__name__} must implement remaining(done).")


@attrs.frozen
class Cosine(Decay):
    """See `cosine`."""

    def remaining(self, done: float) -> float:
        """Return half a cosine."""
        return (1 + math.cos(math.pi * done)) / 2


@attrs.frozen
class OneMinusSqrt(Decay):
    """See `one_minus_sqrt`."""

    def remaining(self, done: float) -> float:
        """Return 1 minus the square root."""
        return 1 - math.sqrt(done)


@attrs.frozen
class Polynomial(Decay):
    """See `polynomial`."""

    power: float = attrs.field(kw_only=True, validator=at_least(0, above=True))

    def remaining(self, done: float) -> float:
        """Return a power of the remaining share of the time."""
        return float((1 - done) ** self.power)


_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": Cosine().remaining,
    "one_minus_sqrt": OneMinusSqrt().remaining,
}


def _shape(_: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and 0 < value < math.inf:
        return
    if not isinstance(value, str) or value not in _SHAPES:
        kind = ValueError if number or isinstance(value, str) else TypeError
        names = ", ".join(map(repr, _SHAPES))
        raise kind(f"shape={value!r} must be one of {names}, or a power above 0, such as 1.2.")


@attrs.frozen
class WarmupStableDecay(Decay):
    """See `warmup_stable_decay`."""

    decay: Time = attrs.field(kw_only=True, converter=_decay)
    shape: str | float = attrs.field(kw_only=True, validator=_shape)

    def check_warmup(self, clock: HasTime) -> None:
        """Raise a ValueError if the warm-up and the decay are longer than `duration`."""
        super().check_warmup(clock)
        self._span(clock)

    def fraction(self, clock: HasTime, duration: Time) -> float:
        """Return the elapsed fraction of the decay, in [0, 1]."""
        done, _ = progress(clock, duration)
        start, total = self._span(clock)
        if total <= start:
            return float(done > start)
        return min(max(float((done - start) / (total - start)), 0.0), 1.0)

    def _span(self, clock: HasTime) -> tuple[int | Fraction, int | Fraction]:
        """Return the start and the end of the decay."""
        duration = self.duration
        total = progress(clock, duration)[1]
        falls = in_unit_of(clock, self.decay, duration, name="decay")
        ramp = in_unit_of(clock, self.warmup, duration)
        if falls > total or ramp < total < ramp + falls:
            raise ValueError(
                f"warmup={str(self.warmup)!r} and decay={str(self.decay)!r} are longer than "
                f"duration={str(duration)!r}, which includes both; pass shorter ones or a longer "
                "duration."
            )
        return max(total - falls, ramp), total

    def remaining(self, done: float) -> float:
        """Return the value of the shape."""
        if isinstance(self.shape, str):
            return _SHAPES[self.shape](done)
        return float((1 - done) ** self.shape)


def constant(
    alpha: float = 1.0, *, duration: TimeLike | None = None, warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Keep a constant multiplier: $\alpha$.

    Args:
        alpha: The multiplier.
        duration: The time from the start of the run until which it is kept, including the warm-up;
            from then on the multiplier is 1. By default it is kept for the whole run.
        warmup: The duration of the linear warm-up from 0 to `alpha`.

    Example:
        >>> from composable import Clock
        >>> constant(0.5, warmup="4ba")(Clock.at(batch=2, max_duration="10ba"))
        0.25
    """
    return Constant(alpha, duration, warmup=warmup)


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
    ICLR 2017, https://arxiv.org/abs/1608.03983 (one cycle; with restarts: `cosine_restarts`).

    Example:
        >>> from composable import Clock
        >>> round(cosine()(Clock.at(batch=5, max_duration="10ba")), 3)
        0.5
    """
    return Cosine(alpha_f, duration, warmup=warmup)


def polynomial(
    power: float,
    alpha_f: float = 0.0,
    *,
    duration: TimeLike = "1dur",
    warmup: TimeLike = "0ba",
) -> Schedule:
    r"""Decay as a power: $\alpha_f + (1 - \alpha_f)(1 - \tau)^\text{power}$, $\tau$ in [0, 1].

    Args:
        power: The exponent, above 0; 1 is a linear decay.
        alpha_f: The final value, kept after `duration`; the initial value is 1.
        duration: The time from the start of the run until the final value is reached, including
            the warm-up.
        warmup: The duration of the linear warm-up from 0 to 1; $\tau$ is 0 at its end. It must not
            be longer than `duration`.

    Example:
        >>> from composable import Clock
        >>> polynomial(2.0)(Clock.at(batch=5, max_duration="10ba"))
        0.25
    """
    return Polynomial(alpha_f, duration, power=power, warmup=warmup)


def one_minus_sqrt(
    alpha_f: float = 0.0, *, duration: TimeLike = "1dur", warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Decay steeply at first: $\alpha_f + (1 - \alpha_f)(1 - \sqrt\tau)$, $\tau$ in [0, 1].

    Args:
        alpha_f: The final value, kept after `duration`; the initial value is 1.
        duration: The time from the start of the run until the final value is reached, including
            the warm-up.
        warmup: The duration of the linear warm-up from 0 to 1; $\tau$ is 0 at its end. It must not
            be longer than `duration`.

    Source: Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
    Durations", NeurIPS 2024, https://arxiv.org/abs/2405.18392 (as the last phase of a run: see
    `warmup_stable_decay`).

    Example:
        >>> from composable import Clock
        >>> one_minus_sqrt()(Clock.at(batch=4, max_duration="16ba"))
        0.5
    """
    return OneMinusSqrt(alpha_f, duration, warmup=warmup)


def warmup_stable_decay(
    decay: TimeLike = "0.2dur",
    alpha_f: float = 0.0,
    *,
    shape: str | float = "one_minus_sqrt",
    duration: TimeLike = "1dur",
    warmup: TimeLike = "0ba",
) -> Schedule:
    r"""Keep 1 until the last phase, and decay in it: $\alpha_f + (1 - \alpha_f) s(\tau)$.

    $\tau$ rises from 0 to 1 in the last phase, of length `decay`. A run can be extended from any
    checkpoint before that phase.

    Args:
        decay: The length of the last phase.
        alpha_f: The final value, kept after `duration`.
        shape: The shape $s$ of the decay: "one_minus_sqrt" $1 - \sqrt\tau$, "linear" $1 - \tau$,
            "cosine" $(1 + \cos \pi\tau) / 2$, or a power $p$: $(1 - \tau)^p$, such as 1.2.
        duration: The time from the start of the run until the final value is reached, including
            the warm-up and the decay.
        warmup: The duration of the linear warm-up from 0 to 1. The warm-up and the decay together
            must not be longer than `duration`.

    Source: Hu et al., "MiniCPM", 2024, https://arxiv.org/abs/2404.06395; the default shape:
    Hägele et al., NeurIPS 2024, https://arxiv.org/abs/2405.18392

    Example:
        >>> from composable import Clock
        >>> schedule = warmup_stable_decay("4ba", shape="linear", warmup="2ba")
        >>> [schedule(Clock.at(batch=k, max_duration="9ba")) for k in range(10)]
        [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return WarmupStableDecay(alpha_f, duration, decay=decay, shape=shape, warmup=warmup)
