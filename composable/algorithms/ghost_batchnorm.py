"""Ghost batch norm, as an algorithm."""

import attrs

from composable.algorithms._validators import integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import ghost_batchnorm

__all__ = ["GhostBatchNorm"]


@attrs.frozen(repr=False)
class GhostBatchNorm(Algorithm):
    """Normalize slices of the batch: see `composable.functional.ghost_batchnorm`.

    Args:
        ghost_batch_size: Number of examples in a slice, 1 or more. Each microbatch is sliced
            separately.
    """

    ghost_batch_size: int = attrs.field(default=32, validator=integer_at_least(1))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"batch norm"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = ghost_batchnorm(state.model, ghost_batch_size=self.ghost_batch_size)
        return state.evolve(model=model)
