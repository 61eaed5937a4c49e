"""Stochastic depth, as an algorithm."""

from math import floor
from typing import Any

import attrs

from composable._support.checks import with_fields
from composable.algorithms._validators import in_range, one_of, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_time, progress
from composable.functional import scale_drop_rates, stochastic_depth
from composable.functional.stochastic_depth import describe_blocks

_STEPS = 100


def _drop_warmup(value: TimeLike | float) -> Time:
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise ValueError(
                f"drop_warmup={value!r} must be a fraction of the run, in [0, 1], or a time, such "
                'as "500ba".'
            )
        value = Time(value, TimeUnit.DURATION)  # type: ignore[arg-type]
    return check_time("drop_warmup", value)


@attrs.frozen(repr=False)
class StochasticDepth(Algorithm):
    """Drop residual blocks at random: see `composable.functional.stochastic_depth`.

    During the warm-up the drop rates grow from 0 to their final values in a hundred equal steps.
    Each step makes a new model, which shares its parameters with the previous one. External loops
    can't replace their model, so the warm-up must be 0 there.

    Args:
        target: The blocks: a class, a `ResidualBlock`, or several of these. None for all known
            blocks.
        method: "block" drops for the whole batch, "sample" for each example.
        drop_rate: Drop rate of the last block ("linear") or of all blocks ("uniform"), in [0, 1].
        drop_distribution: "linear" or "uniform".
        drop_warmup: Duration of the warm-up: "0.1dur", "500ba", or a fraction of the run.
    """

    target: Any = attrs.field(
        default=None, validator=passes(lambda _, target: describe_blocks(target))
    )
    method: str = attrs.field(default="block", validator=one_of("block", "sample"))
    drop_rate: float = attrs.field(default=0.2, validator=in_range(0, 1))
    drop_distribution: str = attrs.field(default="linear", validator=one_of("linear", "uniform"))
    drop_warmup: Time = attrs.field(
        default=Time(0, TimeUnit.DURATION), converter=_drop_warmup, eq=str
    )

    stage = Stage.SURGERY
    writes = frozenset({"model"})
    replaces = frozenset({"residual block"})

    @property
    def events(self) -> frozenset[Event]:
        """`INIT`, and `BATCH_START` if there is a warm-up."""
        grows = {Event.BATCH_START} if self.drop_warmup.value else set()
        return frozenset({Event.INIT, *grows})

    @property
    def reads(self) -> frozenset[str]:
        """The fields that it reads: the length of an epoch if the warm-up may depend on it."""
        length = {"epoch_length"} if self.drop_warmup.unit is TimeUnit.DURATION else set()
        return frozenset({"model", "timestamp", "max_duration"} | length)

    def apply(self, event: Event, state: State) -> State:
        """Replace the blocks before training, and raise their drop rates during the warm-up."""
        model, scale = state.model, 1.0
        if event is Event.INIT:
            model = with_fields(self, stochastic_depth)(model)
        if self.drop_warmup.value:
            done, whole = progress(state, self.drop_warmup)
            scale = min(1.0, floor(_STEPS * done / whole) / _STEPS)
        model = scale_drop_rates(model, scale, target=describe_blocks(self.target))
        return state if model is state.model else state.evolve(model=model)
