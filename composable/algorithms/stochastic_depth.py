"""Stochastic depth, as an algorithm."""

from math import floor
from typing import Any

import attrs

from composable.algorithms._validators import number, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_time, progress
from composable.functional import scale_drop_rates, stochastic_depth
from composable.functional.stochastic_depth import described

__all__ = ["StochasticDepth"]

_STEPS = 100


def _drop_warmup(value: TimeLike | float) -> Time:
    if isinstance(value, float):
        if value > 1:
            raise ValueError(
                f"drop_warmup={value!r} must be a fraction of the run, in [0, 1], or a time such "
                'as "500ba".'
            )
        value = Time(value, TimeUnit.DURATION)  # type: ignore[arg-type]
    return check_time("drop_warmup", value)


def _target(_: Any, __: "attrs.Attribute[Any]", value: Any) -> None:
    described(value)


@attrs.frozen(repr=False)
class StochasticDepth(Algorithm):
    """Leave out residual blocks at random: see `composable.functional.stochastic_depth`.

    During the warm-up the rates grow from 0 in a hundred equal steps, and from its end on they
    are those asked for. Each step makes a new model, which shares its parameters with the last;
    a loop that isn't ours can't follow, so there the warm-up must be 0.

    Args:
        target: The blocks: a class, a `ResidualBlock`, or several; all that are known where None.
        method: "block" (for the whole batch) or "sample" (for each example).
        drop_rate: The rate of the last block, or of all.
        drop_distribution: "linear" or "uniform".
        drop_warmup: How long the rates grow: "0.1dur", "500ba", or a fraction of the run.
    """

    target: Any = attrs.field(default=None, validator=_target)
    method: str = attrs.field(default="block", validator=one_of("block", "sample"))
    drop_rate: float = attrs.field(default=0.2, validator=number(0, 1))
    drop_distribution: str = attrs.field(default="linear", validator=one_of("linear", "uniform"))
    drop_warmup: Time = attrs.field(
        default=Time(0, TimeUnit.DURATION), converter=_drop_warmup, eq=str
    )

    stage = Stage.SURGERY
    reads = frozenset({"model", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"model"})
    replaces = frozenset({"residual block"})

    @property
    def events(self) -> frozenset[Event]:
        """The rates grow at the start of batches."""
        grows = {Event.BATCH_START} if self.drop_warmup.value else set()
        return frozenset({Event.INIT, *grows})

    def apply(self, event: Event, state: State) -> State:
        """Replace the blocks once, before training, and then let their rates grow."""
        model, scale = state.model, 1.0
        if event is Event.INIT:
            model = stochastic_depth(
                model,
                target=self.target,
                method=self.method,
                drop_rate=self.drop_rate,
                drop_distribution=self.drop_distribution,
            )
        if self.drop_warmup.value:
            done, whole = progress(state, self.drop_warmup)
            scale = min(1.0, floor(_STEPS * done / whole) / _STEPS)
        model = scale_drop_rates(model, scale, target=described(self.target))
        return state if model is state.model else state.evolve(model=model)
