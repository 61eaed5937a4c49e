"""SAM, as an algorithm."""

from collections.abc import Mapping

import attrs
from torch import Tensor

from composable.algorithms._validators import in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit
from composable.core.window import Window
from composable.functional import sam_perturbation


@attrs.frozen(repr=False)
class SAM(Algorithm):
    """Take the gradient at the worst-case nearby weights: see `functional.sam_perturbation`.

    The loop runs two passes over the batch, with the same examples, mixing and dropout. The second
    one, with the perturbed weights, gives the gradients of the step, which are then clipped. The
    logged loss and the running statistics of normalization layers come from the first. It needs the
    Trainer: external loops have no second pass.

    Args:
        rho: Radius of the neighbourhood of the weights, 0 or more.
        epsilon: Term added to the norm of the gradients for numerical stability, above 0.
        interval: Number of batches between two perturbed ones. The other batches are trained on
            without a second pass.
    """

    rho: float = attrs.field(default=0.05, validator=in_range(0, ends="[)"))
    epsilon: float = attrs.field(default=1e-12, validator=in_range(0, ends="()"))
    interval: int = attrs.field(default=1, validator=integer_at_least(1))

    events = frozenset({Event.BEFORE_TRAIN_BATCH})
    stage = Stage.GRADIENTS
    reads = frozenset({"model", "gradients", "optimizers", "timestamp"})
    writes = frozenset({"second_pass"})

    def match(self, event: Event, state: State) -> bool:
        """Match in the first of every `interval` batches."""
        return event in self.events and state.timestamp.batch % self.interval == 0

    def window(self) -> Window:
        """Return the window: one batch in every `interval`."""
        return Window(interval=Time(self.interval, TimeUnit.BATCH) if self.interval > 1 else None)

    def apply(self, event: Event, state: State) -> State:
        """Request a second pass."""
        return state.evolve(second_pass=self.worst_weights)

    def worst_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return the perturbed weights for the gradients of a state."""
        grads = state.current_gradients()
        params = {name: p for name, p in state.named_parameters() if name in grads}
        return sam_perturbation.unchecked(params, grads, rho=self.rho, epsilon=self.epsilon)
