"""FixRes, as an algorithm."""

import attrs

from composable._support.checks import with_fields
from composable.algorithms._dense_targets import check_no_dense_targets, with_inputs
from composable.algorithms._validators import in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import fixres


@attrs.frozen(repr=False)
class FixRes(Algorithm):
    """Evaluate and predict at a higher resolution: see `composable.functional.fixres`.

    Training does not change. Targets that have a value for each pixel are an error.

    Args:
        scale_factor: The resolution as a multiple of the loader's, above 0.
        size_increment: New lengths are the nearest multiples of this.
    """

    scale_factor: float = attrs.field(default=1.25, validator=in_range(0, ends="()"))
    size_increment: int = attrs.field(default=1, validator=integer_at_least(1))

    events = frozenset({Event.EVAL_BATCH_START, Event.PREDICT_BATCH_START})
    stage = Stage.RESIZE
    reads = frozenset({"batch"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Resize the inputs of the batch."""
        inputs = with_fields(self, fixres)(state.inputs)
        if event is Event.EVAL_BATCH_START and self.scale_factor != 1:
            check_no_dense_targets(
                state,
                f"{self.name} can't resize",
                "resize the outputs in your model, and call composable.functional.fixres there",
            )
        return with_inputs(state, inputs)
