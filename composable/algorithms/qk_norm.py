"""Query-key normalization, as an algorithm."""

import attrs

from composable.algorithms._validators import boolean, in_range
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import qk_norm

__all__ = ["QKNorm"]


@attrs.frozen(repr=False)
class QKNorm(Algorithm):
    """Normalize queries and keys: see `composable.functional.qk_norm`.

    Args:
        gain: The gain of each head, or its initial value, above 0.
        learned: Whether the gains are parameters.
    """

    gain: float = attrs.field(default=1.0, validator=in_range(0, ends="()"))
    learned: bool = attrs.field(default=True, validator=boolean)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})

    def apply(self, event: Event, state: State) -> State:
        """Change the attention once, before training."""
        model = qk_norm(state.model, gain=self.gain, learned=self.learned)
        return state if model is state.model else state.evolve(model=model)
