"""SAM, as an algorithm."""

from collections.abc import Mapping

import attrs
from torch import Tensor

from composable.algorithms._validators import integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit
from composable.core.window import Window
from composable.functional import sam_perturbation

__all__ = ["SAM"]


@attrs.frozen(repr=False)
class SAM(Algorithm):
    """Train on the gradients at the worst point nearby: see `functional.sam_perturbation`.

    The loop goes through the batch twice: with the weights as they are, and with those of the
    worst point, where the gradients of the step come from. Both passes see the same examples,
    mixed in the same way, and the same dropout; the loss that is logged, and the running
    statistics of normalisation layers, are those of the first. Any optimizer will do, and
    gradients are clipped after the second pass. A loop that isn't ours can't do this.

    Args:
        rho: The radius of the ball in which the worst point lies, 0 or more.
        epsilon: Keeps the step to it finite where all gradients are 0, above 0.
        interval: In the first of every so many batches; the others are trained on as ever.
    """

    rho: float = attrs.field(default=0.05, validator=number(0, ends="[)"))
    epsilon: float = attrs.field(default=1e-12, validator=number(0, ends="()"))
    interval: int = attrs.field(default=1, validator=integer(1))

    events = frozenset({Event.BEFORE_TRAIN_BATCH})
    stage = Stage.GRADIENTS
    reads = frozenset({"model", "gradients", "optimizers", "timestamp"})
    writes = frozenset({"second_pass"})

    def match(self, event: Event, state: State) -> bool:
        """Whether it is the turn of the batch."""
        return event in self.events and state.timestamp.batch % self.interval == 0

    def window(self) -> Window:
        """Its turns."""
        return Window(interval=Time(self.interval, TimeUnit.BATCH) if self.interval > 1 else None)

    def apply(self, event: Event, state: State) -> State:
        """Ask for a second pass."""
        return state.evolve(second_pass=self.worst_weights)

    def worst_weights(self, state: State) -> Mapping[str, Tensor]:
        """The weights at the worst point, for the gradients of a state."""
        grads = state.current_gradients()
        params = {name: p for name, p in state.model.named_parameters() if name in grads}
        return sam_perturbation(params, grads, rho=self.rho, epsilon=self.epsilon)
