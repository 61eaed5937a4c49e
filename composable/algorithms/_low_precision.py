"""What the algorithms of low-precision norms share."""

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import torch

from composable.algorithms._validators import low_precision
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional.layers.low_precision import report_if_idle

__all__ = ["LowPrecisionNorm"]


@attrs.frozen(repr=False)
class LowPrecisionNorm(Algorithm):
    """Compute norms in low precision; a subclass has the `surgery`."""

    precision: torch.dtype | None = attrs.field(default=None, validator=low_precision)

    surgery: ClassVar[Callable[..., Any]]
    """A function of the model and the precision."""
    events = frozenset({Event.INIT})
    stage = Stage.PRECISION
    reads = frozenset({"model"})
    writes = frozenset({"model"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = type(self).surgery(state.model, precision=self.precision)
        return state.evolve(model=report_if_idle(model))
