"""Low-precision layer norm, as an algorithm."""

import attrs
import torch

from composable.algorithms._validators import low_precision
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import low_precision_layernorm
from composable.functional.layers.low_precision import report_if_idle

__all__ = ["LowPrecisionLayerNorm"]


@attrs.frozen(repr=False)
class LowPrecisionLayerNorm(Algorithm):
    """Compute layer and RMS norms in low precision: see `functional.low_precision_layernorm`.

    Args:
        precision: `torch.float16` or `torch.bfloat16`. None for the dtype of autocast.

    Warns:
        NoEffectWarning: The precision is None, and there is no autocast in the first training step.
    """

    precision: torch.dtype | None = attrs.field(default=None, validator=low_precision)

    events = frozenset({Event.INIT})
    stage = Stage.PRECISION
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"layer norm"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = low_precision_layernorm(state.model, precision=self.precision)
        return state.evolve(model=report_if_idle(model))
