"""Value embeddings, as an algorithm."""

from collections.abc import Sequence

import attrs

from composable.algorithms._validators import integer_at_least, name_or_none, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import value_embeddings
from composable.functional.value_embeddings import check_layers

__all__ = ["ValueEmbeddings"]


@attrs.frozen(repr=False)
class ValueEmbeddings(Algorithm):
    """Add embeddings of the tokens to the values of attention: see `functional.value_embeddings`.

    Args:
        layers: Numbers of the layers, from 0, or from -1 for the last. None for all.
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    layers: Sequence[int] | None = attrs.field(default=None, validator=passes(check_layers))
    channels: int = attrs.field(default=12, validator=integer_at_least(1))
    target: str | None = attrs.field(default=None, validator=name_or_none)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"values of attention"})

    def apply(self, event: Event, state: State) -> State:
        """Add the tables once, before training."""
        model = value_embeddings(
            state.model, layers=self.layers, channels=self.channels, target=self.target
        )
        return state if model is state.model else state.evolve(model=model)
