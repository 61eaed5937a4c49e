"""Schedules that are given by the elapsed time and a period, and not by the length of the run."""

import math
from collections.abc import Sequence
from typing import Any

import attrs

from composable.core.time import HasTime, Time, TimeLike, check_time, progress, reached
from composable.optim.schedule import Schedule, at_least, finite, positive_time

_EPOCH = Time.parse("1ep")


def _step_size(value: TimeLike) -> Time:
    return check_time("step_size", value)


def _period(value: TimeLike) -> Time:
    return check_time("period", value)


def _milestones(value: Any) -> tuple[Time, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"milestones={value!r} must be a list of times, such as ['0.3dur', '0.6dur']."
        )
    return tuple(check_time(f"milestones[{i}]", time) for i, time in enumerate(value))


@attrs.frozen
class Step(Schedule):
    """See `step`."""

    step_size: Time = attrs.field(converter=_step_size, validator=positive_time)
    gamma: float = attrs.field(default=0.1, validator=finite)

    def after_warmup(self, clock: HasTime) -> float:
        """Return `gamma` to the power of the number of completed steps."""
        done, size = progress(clock, self.step_size)
        return float(self.gamma ** int(done // size))


@attrs.frozen
class MultiStep(Schedule):
    """See `multi_step`."""

    milestones: tuple[Time, ...] = attrs.field(converter=_milestones)
    gamma: float = attrs.field(default=0.1, validator=finite)

    def after_warmup(self, clock: HasTime) -> float:
        """Return `gamma` to the power of the number of milestones that were reached."""
        return float(self.gamma ** sum(reached(clock, time) for time in self.milestones))


@attrs.frozen
class Exponential(Schedule):
    """See `exponential`."""

    gamma: float = attrs.field(validator=at_least(0))
    period: Time = attrs.field(default=_EPOCH, converter=_period, validator=positive_time)

    def after_warmup(self, clock: HasTime) -> float:
        """Return `gamma` to the power of the number of periods since the warm-up."""
        done, size = self.since_warmup(clock, self.period)
        return float(self.gamma ** float(done / size))


@attrs.frozen
class CosineRestarts(Schedule):
    """See `cosine_restarts`."""

    period: Time = attrs.field(converter=_period, validator=positive_time)
    factor: float = attrs.field(default=1.0, validator=at_least(1))
    alpha_f: float = attrs.field(default=0.0, validator=finite)

    def after_warmup(self, clock: HasTime) -> float:
        """Decay from 1 to `alpha_f` along half a cosine in each cycle."""
        done, size = self.since_warmup(clock, self.period)
        within = self._within_cycle(done / size)
        return self.alpha_f + (1 - self.alpha_f) * (1 + math.cos(math.pi * within)) / 2

    def _within_cycle(self, periods: Any) -> float:
        """Return the elapsed fraction of the cycle, after a number of first cycles."""
        if self.factor == 1:
            return float(periods % 1)
        # Integers are exact; a logarithm alone would end some cycles one batch late.
        factor: Any = int(self.factor) if self.factor == int(self.factor) else float(self.factor)
        cycle = int(math.log1p(float(periods) * (factor - 1)) / math.log(factor))
        cycle += periods >= _start_of(cycle + 1, factor)
        cycle -= periods < _start_of(cycle, factor)
        return float((periods - _start_of(cycle, factor)) / factor**cycle)


def _start_of(cycle: int, factor: Any) -> Any:
    """Return the sum of the lengths of all cycles before this one, each `factor` times longer."""
    total = factor**cycle - 1
    return total // (factor - 1) if isinstance(factor, int) else total / (factor - 1)


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


def multi_step(
    milestones: Sequence[TimeLike], gamma: float = 0.1, *, warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Decay at milestones: $\gamma$ to the power of the number of milestones reached.

    Args:
        milestones: Times from the start of the run, in any order and in any units.
        gamma: The factor of each milestone.
        warmup: The duration of the linear warm-up from 0 to 1. The milestones that are reached by
            its end count.

    Example:
        >>> from composable import Clock
        >>> multi_step(["0.3dur", "8ba"], 0.5)(Clock.at(batch=5, max_duration="10ba"))
        0.5
    """
    return MultiStep(milestones, gamma, warmup=warmup)


def exponential(gamma: float, period: TimeLike = "1ep", *, warmup: TimeLike = "0ba") -> Schedule:
    r"""Decay exponentially: $\gamma^{t / \text{period}}$, where $t$ starts after the warm-up.

    Args:
        gamma: The factor of each period, 0 or more. The decay is continuous: after half a period
            it is $\sqrt\gamma$.
        period: The duration in which the multiplier changes by `gamma`, positive.
        warmup: The duration of the linear warm-up from 0 to 1.

    Example:
        >>> from composable import Clock
        >>> exponential(0.25, "2ba")(Clock.at(batch=1, max_duration="10ba"))
        0.5
    """
    return Exponential(gamma, period, warmup=warmup)


def cosine_restarts(
    period: TimeLike, factor: float = 1.0, alpha_f: float = 0.0, *, warmup: TimeLike = "0ba"
) -> Schedule:
    r"""Decay along a cosine in cycles: $\alpha_f + (1 - \alpha_f)(1 + \cos \pi\tau) / 2$.

    $\tau$ rises from 0 to 1 in each cycle.

    Args:
        period: The length of the first cycle, positive. It starts after the warm-up.
        factor: The ratio of the lengths of two successive cycles, 1 or more.
        alpha_f: The value that is approached at the end of a cycle; each starts at 1.
        warmup: The duration of the linear warm-up from 0 to 1.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts",
    ICLR 2017, https://arxiv.org/abs/1608.03983

    Example:
        >>> from composable import Clock
        >>> schedule = cosine_restarts("2ba", factor=2)
        >>> [round(schedule(Clock.at(batch=k, max_duration="8ba")), 2) for k in range(8)]
        [1.0, 0.5, 1.0, 0.85, 0.5, 0.15, 1.0, 0.96]
    """
    return CosineRestarts(period, factor, alpha_f, warmup=warmup)
