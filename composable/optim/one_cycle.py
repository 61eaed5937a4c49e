"""One cycle of the learning rate: a rise, and then a longer fall to far below its start.

Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
Rates", 2018, https://arxiv.org/abs/1708.07120
"""

import math
from typing import Any

import attrs

from composable.core.time import HasTime, Time, TimeLike
from composable.optim.schedule import WHOLE_RUN, Schedule, as_duration, at_least, finite


def _share(instance: object, attribute: "attrs.Attribute[float]", value: Any) -> None:
    finite(instance, attribute, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name}={value!r} must be in [0, 1].")


def _strategy(_: object, attribute: "attrs.Attribute[str]", value: Any) -> None:
    if not isinstance(value, str) or value not in ("cos", "linear"):
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"anneal_strategy={value!r} must be 'cos' or 'linear'.")


@attrs.frozen
class OneCycle(Schedule):
    """See `one_cycle`."""

    pct_start: float = attrs.field(default=0.3, validator=_share)
    anneal_strategy: str = attrs.field(default="cos", validator=_strategy)
    div_factor: float = attrs.field(default=25.0, validator=at_least(1))
    final_div_factor: float = attrs.field(default=1e4, validator=at_least(1))
    duration: Time = attrs.field(default=WHOLE_RUN, converter=as_duration)

    def after_warmup(self, clock: HasTime) -> float:
        """Rise to 1, and fall to the final value."""
        done, peak = self.fraction(clock, self.duration), self.pct_start
        first = 1 / self.div_factor
        if done < peak:
            return self._between(first, 1.0, done / peak)
        fallen = (done - peak) / (1 - peak) if peak < 1 else 0.0
        return self._between(1.0, first / self.final_div_factor, fallen)

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * share
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def one_cycle(
    pct_start: float = 0.3,
    *,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    duration: TimeLike = "1dur",
) -> Schedule:
    r"""Rise from $1 / d$ to 1, and fall to $1 / (d f)$, each along half a cosine or a line.

    The peak is the learning rate of the optimizer. The arguments are as in
    `torch.optim.lr_scheduler.OneCycleLR`, whose peak and end are one step earlier, since it counts
    steps from 0 to `total_steps - 1`: with $n$ batches and $p$ = `pct_start`, its values for
    `total_steps` $= n + 1$ and `pct_start` $= (p n + 1) / (n + 1)$ equal this schedule's. The
    momentum is constant; `per_option` gives it a schedule.

    Args:
        pct_start: The share of `duration` in which the rate rises, in [0, 1].
        anneal_strategy: "cos" or "linear".
        div_factor: The ratio $d$ of the peak to the first value, at least 1.
        final_div_factor: The ratio $f$ of the first value to the last, at least 1.
        duration: The time from the start of the run until the last value is reached.

    Source: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large
    Learning Rates", 2018, https://arxiv.org/abs/1708.07120

    Example:
        >>> from composable import Clock
        >>> schedule = one_cycle(0.25, anneal_strategy="linear", div_factor=5)
        >>> [round(schedule(Clock.at(batch=k, max_duration="8ba")), 2) for k in range(9)]
        [0.2, 0.6, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17, 0.0]
    """
    return OneCycle(pct_start, anneal_strategy, div_factor, final_div_factor, duration)
