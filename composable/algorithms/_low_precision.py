"""What the algorithms of low-precision norms share."""

import attrs
import torch

from composable.algorithms._surgery import Surgery
from composable.core.algorithm import Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional.layers.low_precision import report_if_idle


@attrs.frozen(repr=False)
class LowPrecisionNorm(Surgery):
    """Compute norms in low precision."""

    precision: torch.dtype | None = None

    stage = Stage.PRECISION

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        new = super().apply(event, state)
        return new.evolve(model=report_if_idle(new.model))
