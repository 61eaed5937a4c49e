"""Weight standardization, as an algorithm."""

import attrs

from composable.algorithms._validators import integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import weight_standardization

__all__ = ["WeightStandardization"]


@attrs.frozen(repr=False)
class WeightStandardization(Algorithm):
    """Standardize convolutions: see `composable.functional.weight_standardization`.

    Args:
        n_last_layers_ignore: Number of convolutions, counted from the last, to skip.
    """

    n_last_layers_ignore: int = attrs.field(default=0, validator=integer_at_least(0))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"convolution"})

    def apply(self, event: Event, state: State) -> State:
        """Parametrize the layers once, before training."""
        model = weight_standardization(state.model, n_last_layers_ignore=self.n_last_layers_ignore)
        return state.evolve(model=model)
