"""Gradient clipping, as an algorithm."""

import attrs

from composable.algorithms._validators import in_range, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import clip_gradients


@attrs.frozen(repr=False)
class GradientClipping(Algorithm):
    """Clip the gradients of each batch: see `composable.functional.clip_gradients`.

    Args:
        clipping_type: "norm", "value" or "adaptive".
        clipping_threshold: The bound, above 0. The default suits the norm.
    """

    clipping_type: str = attrs.field(default="norm", validator=one_of("norm", "value", "adaptive"))
    clipping_threshold: float = attrs.field(default=1.0, validator=in_range(0, ends="(]"))

    events = frozenset({Event.BEFORE_OPTIMIZER_STEP})
    stage = Stage.GRADIENTS
    reads = frozenset({"model", "gradients", "optimizers"})
    writes = frozenset({"gradients"})

    def apply(self, event: Event, state: State) -> State:
        """Clip the gradients before the optimizer step."""
        grads = state.current_gradients()
        adaptive = self.clipping_type == "adaptive"
        named = dict(state.named_parameters()) if adaptive else {}
        clipped = clip_gradients(
            grads,
            threshold=self.clipping_threshold,
            method=self.clipping_type,
            params={name: named[name].detach() for name in grads} if adaptive else None,
        )
        return state.evolve(gradients=clipped)
