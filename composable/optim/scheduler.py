"""The schedules under the names and arguments of Composer's schedulers.

`from composer.optim.scheduler import MultiStepScheduler` becomes `from composable.optim.scheduler
import MultiStepScheduler`. Each function returns the schedule of `composable.optim` that it names,
with the same values, except that times are exact: they are not rounded down to whole batches. The
learning rate of batch k is the schedule at k, and not at k - 1. `scale_schedule` takes the place of
`scale_schedule_ratio` and of `scale_warmup`.

Example:
    >>> from composable.optim.scheduler import MultiStepScheduler
    >>> MultiStepScheduler(milestones=["0.3dur", "0.5dur", "0.9dur"], gamma=0.1)
    MultiStep(warmup=Time('0ba'), milestones=(Time('0.3dur'), Time('0.5dur'), Time('0.9dur')), gamma=0.1)
"""  # noqa: E501

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from composable.core.time import TimeLike
from composable.optim.periodic import cosine_restarts, exponential, multi_step, step
from composable.optim.schedule import Schedule
from composable.optim.schedules import constant, cosine, linear, polynomial


def StepScheduler(step_size: TimeLike, gamma: float = 0.1) -> Schedule:
    """Return `step(step_size, gamma)`.

    Args:
        step_size: The duration of each step.
        gamma: The factor of each step.
    """
    return step(step_size, gamma)


def MultiStepScheduler(milestones: Sequence[TimeLike], gamma: float = 0.1) -> Schedule:
    """Return `multi_step(milestones, gamma)`.

    Args:
        milestones: Times from the start of the run.
        gamma: The factor of each step.
    """
    return multi_step(milestones, gamma)


def ConstantScheduler(alpha: float = 1.0, t_max: TimeLike = "1dur") -> Schedule:
    """Return `constant(alpha, duration=t_max)`.

    Args:
        alpha: The multiplier.
        t_max: The time from which the multiplier is 1.
    """
    with _named(duration="t_max"):
        return constant(alpha, duration=t_max)


def LinearScheduler(
    alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: TimeLike = "1dur"
) -> Schedule:
    """Return `linear(alpha_i, alpha_f, duration=t_max)`.

    Args:
        alpha_i: The initial value.
        alpha_f: The final value.
        t_max: The time at which the final value is reached.
    """
    with _named(duration="t_max"):
        return linear(alpha_i, alpha_f, duration=t_max)


def ExponentialScheduler(gamma: float, decay_period: TimeLike = "1ep") -> Schedule:
    """Return `exponential(gamma, decay_period)`.

    Args:
        gamma: The factor of each period.
        decay_period: The duration in which the multiplier changes by `gamma`.
    """
    with _named(period="decay_period"):
        return exponential(gamma, decay_period)


def CosineAnnealingScheduler(t_max: TimeLike = "1dur", alpha_f: float = 0.0) -> Schedule:
    """Return `cosine(alpha_f, duration=t_max)`.

    Args:
        t_max: The time at which the final value is reached.
        alpha_f: The final value.
    """
    with _named(duration="t_max"):
        return cosine(alpha_f, duration=t_max)


def CosineAnnealingWarmRestartsScheduler(
    t_0: TimeLike, t_mult: float = 1.0, alpha_f: float = 0.0
) -> Schedule:
    """Return `cosine_restarts(t_0, t_mult, alpha_f)`.

    Args:
        t_0: The length of the first cycle.
        t_mult: The ratio of the lengths of two successive cycles.
        alpha_f: The value that is approached at the end of a cycle.
    """
    with _named(period="t_0", factor="t_mult"):
        return cosine_restarts(t_0, t_mult, alpha_f)


def PolynomialScheduler(power: float, t_max: TimeLike = "1dur", alpha_f: float = 0.0) -> Schedule:
    """Return `polynomial(power, alpha_f, duration=t_max)`.

    Args:
        power: The exponent.
        t_max: The time at which the final value is reached.
        alpha_f: The final value.
    """
    with _named(duration="t_max"):
        return polynomial(power, alpha_f, duration=t_max)


def MultiStepWithWarmupScheduler(
    t_warmup: TimeLike, milestones: Sequence[TimeLike], gamma: float = 0.1
) -> Schedule:
    """Return `multi_step(milestones, gamma, warmup=t_warmup)`.

    Args:
        t_warmup: The duration of the linear warm-up from 0.
        milestones: Times from the start of the run.
        gamma: The factor of each step.
    """
    with _named(warmup="t_warmup"):
        return multi_step(milestones, gamma, warmup=t_warmup)


def ConstantWithWarmupScheduler(
    t_warmup: TimeLike, alpha: float = 1.0, t_max: TimeLike = "1dur"
) -> Schedule:
    """Return `linear(alpha, alpha, duration=t_max, warmup=t_warmup)`, a constant.

    Args:
        t_warmup: The duration of the linear warm-up from 0.
        alpha: The multiplier.
        t_max: The time that the warm-up must not exceed. The multiplier stays `alpha` after it.
    """
    with _named(duration="t_max", warmup="t_warmup", alpha_i="alpha"):
        return linear(alpha, alpha, duration=t_max, warmup=t_warmup)


def LinearWithWarmupScheduler(
    t_warmup: TimeLike, alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: TimeLike = "1dur"
) -> Schedule:
    """Return `linear(alpha_i, alpha_f, duration=t_max, warmup=t_warmup)`.

    Args:
        t_warmup: The duration of the linear warm-up from 0.
        alpha_i: The initial value.
        alpha_f: The final value.
        t_max: The time at which the final value is reached.
    """
    with _named(duration="t_max", warmup="t_warmup"):
        return linear(
            alpha_i,
            alpha_f,
            duration=t_max,
            warmup=t_warmup,
        )


def CosineAnnealingWithWarmupScheduler(
    t_warmup: TimeLike, t_max: TimeLike = "1dur", alpha_f: float = 0.0
) -> Schedule:
    """Return `cosine(alpha_f, duration=t_max, warmup=t_warmup)`.

    Args:
        t_warmup: The duration of the linear warm-up from 0.
        t_max: The time at which the final value is reached.
        alpha_f: The final value.
    """
    with _named(duration="t_max", warmup="t_warmup"):
        return cosine(alpha_f, duration=t_max, warmup=t_warmup)


def PolynomialWithWarmupScheduler(
    t_warmup: TimeLike, power: float = 2.0, t_max: TimeLike = "1dur", alpha_f: float = 0.0
) -> Schedule:
    """Return `polynomial(power, alpha_f, duration=t_max, warmup=t_warmup)`.

    Args:
        t_warmup: The duration of the linear warm-up from 0.
        power: The exponent.
        t_max: The time at which the final value is reached.
        alpha_f: The final value.
    """
    with _named(duration="t_max", warmup="t_warmup"):
        return polynomial(power, alpha_f, duration=t_max, warmup=t_warmup)


@contextmanager
def _named(**names: str) -> Iterator[None]:
    """Let errors name the arguments of this module."""
    try:
        yield
    except (TypeError, ValueError) as error:
        own, equals, rest = str(error).partition("=")
        raise type(error)(f"{names.get(own, own)}{equals}{rest}") from None
