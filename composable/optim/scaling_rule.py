"""A learning rate that follows the size of the steps.

Goyal et al., "Accurate, Large Minibatch SGD", 2017, https://arxiv.org/abs/1706.02677 (power 1);
Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022,
https://arxiv.org/abs/2205.10287 (power 1/2 for Adam)
"""

from collections.abc import Callable
from typing import Any

import attrs

from composable._support.checks import check_range, checked, within
from composable.core.time import HasTime


@attrs.frozen
class ScalingRule:
    """See `scaling_rule`."""

    size: Callable[[HasTime], float]
    base: float
    power: float = 1.0

    def __call__(self, clock: HasTime) -> float:
        """Return the multiplier at the time of `clock`."""
        size = self.size(clock)
        check_range("size(clock)", size, 0, ends="()")
        return float((size / self.base) ** self.power)


@checked(base=within(0, ends="()"), power=within(0, ends="[)"))
def scaling_rule(size: Any, base: float, power: float = 1.0) -> ScalingRule:
    r"""Scale the learning rate with the size of the steps: $(\text{size} / \text{base})^p$.

    While batches or sequences grow, a constant rate makes too large steps for what the first
    batches can tell. With $p = 1$ the rate for each example or token is constant, as for SGD; for
    Adam and its relatives the authors derive $p = 1/2$.

    Args:
        size: The number of examples or tokens of the next batch at the time of a clock:
            `BatchSizeWarmupSampler.size_at`, `SeqLengthWarmup.length_at`, or a function of yours.
        base: The size at which the learning rate is the optimizer's, above 0: the largest, or the
            one for which the rate was tuned.
        power: The power $p$, 0 or more.

    Returns:
        A schedule. Pass it beside others, whose product it joins. Give their durations in samples
        or tokens, so that they follow what was trained on and not the number of steps.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, https://arxiv.org/abs/1706.02677;
    Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022,
    https://arxiv.org/abs/2205.10287

    Example:
        >>> from composable import Clock
        >>> from composable.algorithms import SeqLengthWarmup
        >>> warmup = SeqLengthWarmup(duration=0.5, min_seq_length=16, max_seq_length=64)
        >>> schedule = scaling_rule(warmup.length_at, 64, power=0.5)
        >>> [schedule(Clock.at(batch=k, max_duration="8ba")) for k in (0, 4)]
        [0.5, 1.0]
    """
    if not callable(size):
        raise TypeError(
            f"size={size!r} must be a function of a clock, such as SeqLengthWarmup(...).length_at."
        )
    return ScalingRule(size, base, power)
