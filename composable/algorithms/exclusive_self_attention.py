"""Exclusive self-attention, as an algorithm."""

import attrs

from composable.algorithms._validators import boolean
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import exclusive_self_attention

__all__ = ["ExclusiveSelfAttention"]


@attrs.frozen(repr=False)
class ExclusiveSelfAttention(Algorithm):
    """Take a token's own value out of attention: `composable.functional.exclusive_self_attention`.

    Args:
        learned: Whether the removed share is learned. By default all of it is removed.
    """

    learned: bool = attrs.field(default=False, validator=boolean)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})

    def apply(self, event: Event, state: State) -> State:
        """Change the attention once, before training."""
        model = exclusive_self_attention(state.model, learned=self.learned)
        return state if model is state.model else state.evolve(model=model)
