"""A gate on the output of attention, as an algorithm."""

import attrs

from composable.algorithms._validators import integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import attention_output_gate

__all__ = ["AttentionOutputGate"]


@attrs.frozen(repr=False)
class AttentionOutputGate(Algorithm):
    """Gate the outputs of attention: see `composable.functional.attention_output_gate`.

    Args:
        channels: Number of features of the inputs that determine the gates, at least 1.
    """

    channels: int = attrs.field(default=12, validator=integer_at_least(1))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})

    def apply(self, event: Event, state: State) -> State:
        """Change the attention once, before training."""
        model = attention_output_gate(state.model, channels=self.channels)
        return state if model is state.model else state.evolve(model=model)
