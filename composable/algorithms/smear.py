"""Smear, as an algorithm."""

import attrs

from composable.algorithms._validators import integer_at_least, name_or_none
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import smear

__all__ = ["Smear"]


@attrs.frozen(repr=False)
class Smear(Algorithm):
    """Add a share of the previous token's embedding: see `composable.functional.smear`.

    Args:
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    channels: int = attrs.field(default=12, validator=integer_at_least(1))
    target: str | None = attrs.field(default=None, validator=name_or_none)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    after = frozenset({"NGramEmbeddings"})
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"token embedding"})

    def apply(self, event: Event, state: State) -> State:
        """Add the gate once, before training."""
        model = smear(state.model, channels=self.channels, target=self.target)
        return state if model is state.model else state.evolve(model=model)
