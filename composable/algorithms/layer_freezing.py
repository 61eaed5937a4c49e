"""Layer freezing, as an algorithm."""

from fractions import Fraction

import attrs

from composable.algorithms._validators import number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit
from composable.core.window import Window
from composable.functional import frozen_layers

__all__ = ["LayerFreezing"]


@attrs.frozen(repr=False)
class LayerFreezing(Algorithm):
    """Train leading layers for a part of the run only: see `composable.functional.frozen_layers`.

    In each batch the layers that are frozen by then require no gradient, so the backward pass
    ends where they begin, and the optimizers, which keep all that they remember, pass them over.

    Args:
        freeze_start: The fraction of training after which freezing begins.
        freeze_level: The share of the layers that are frozen at the end.
    """

    freeze_start: float = attrs.field(default=0.5, validator=number(0, 1))
    freeze_level: float = attrs.field(default=1.0, validator=number(0, 1))

    events = frozenset({Event.BEFORE_TRAIN_BATCH})
    stage = Stage.GRADIENTS
    reads = frozenset({"model", "frozen", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"frozen"})

    def window(self) -> Window:
        """From `freeze_start` on."""
        return Window(Time(Fraction(repr(float(self.freeze_start))), TimeUnit.DURATION))

    def idle_reason(self) -> str | None:
        """It begins at the end, or never goes beyond the first layer."""
        if self.freeze_start == 1:
            return "freezing begins when the training ends, at freeze_start=1"
        return "no layer is to be frozen, at freeze_level=0" if self.freeze_level == 0 else None

    def apply(self, event: Event, state: State) -> State:
        """Say which parameters this batch doesn't train."""
        now = frozen_layers(
            state.model,
            elapsed=state.elapsed,
            freeze_start=self.freeze_start,
            freeze_level=self.freeze_level,
        )
        if state.frozen.issuperset(now.parameters):
            return state
        return state.evolve(frozen=state.frozen.union(now.parameters))
