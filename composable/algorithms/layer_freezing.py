"""Layer freezing, as an algorithm."""

from fractions import Fraction

import attrs

from composable._support.checks import with_fields
from composable.algorithms._validators import in_range
from composable.core.algorithm import Algorithm, Remark, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit, progress
from composable.core.window import Window
from composable.functional import frozen_layers


@attrs.frozen(repr=False)
class LayerFreezing(Algorithm):
    """Progressively freeze the first layers: see `composable.functional.frozen_layers`.

    The parameters of frozen layers don't require gradients during a batch. So the backward pass
    stops at the first layer that trains, and the optimizers skip the frozen parameters and keep
    their state.

    Args:
        freeze_start: Fraction of training after which freezing starts, in [0, 1].
        freeze_level: Share of the layers that are frozen at the end, in [0, 1].
    """

    freeze_start: float = attrs.field(default=0.5, validator=in_range(0, 1))
    freeze_level: float = attrs.field(default=1.0, validator=in_range(0, 1))

    events = frozenset({Event.BEFORE_TRAIN_BATCH})
    stage = Stage.GRADIENTS
    reads = frozenset({"model", "frozen", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"frozen"})

    def window(self) -> Window:
        """Return the window from `freeze_start` on."""
        return Window(Time(Fraction(repr(float(self.freeze_start))), TimeUnit.DURATION))

    def idle_reason(self) -> str | None:
        """Return a reason if freezing starts at the end of training, or freezes no layer."""
        if self.freeze_start == 1:
            return "freezing starts at the end of training, with freeze_start=1"
        return "no layer is frozen, with freeze_level=0" if self.freeze_level == 0 else None

    def remark(self, state: State) -> Remark | None:
        """Warn if the run ends before the first layer is frozen."""
        if self.idle_reason() or state.max_duration is None:
            return None
        _, batches = progress(state, state.max_duration)
        exact = state.max_duration.unit is TimeUnit.BATCH or state.epoch_length
        last = 1 - 1 / float(batches) if exact else 1 - 1e-9  # of the start of the last batch
        if with_fields(self, frozen_layers)(state.model, elapsed=last).layers:
            return None
        count = len(frozen_layers(state.model, elapsed=1.0, freeze_start=0.0).layers)
        return Remark(
            f"{self.name} freezes no layer: of the {count + 1} layers that train, the last one is "
            f"never frozen, and the first is not within this run of {state.max_duration} with "
            f"freeze_start={self.freeze_start} and freeze_level={self.freeze_level}. Drop it, "
            "start earlier, or freeze a larger share.",
            warns=True,
        )

    def apply(self, event: Event, state: State) -> State:
        """Freeze the parameters of the layers that are frozen in this batch."""
        now = with_fields(self, frozen_layers)(state.model, elapsed=state.elapsed)
        if state.frozen.issuperset(now.parameters):
            return state
        return state.evolve(frozen=state.frozen.union(now.parameters))
