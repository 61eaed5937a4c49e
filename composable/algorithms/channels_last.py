"""Channels-last, as an algorithm."""

import attrs

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import channels_last

__all__ = ["ChannelsLast"]


@attrs.frozen(repr=False)
class ChannelsLast(Algorithm):
    """Use the channels-last memory format: see `composable.functional.channels_last`."""

    events = frozenset({Event.INIT})
    stage = Stage.LAYOUT
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"memory layout"})

    def apply(self, event: Event, state: State) -> State:
        """Convert the memory format once, before training."""
        return state.evolve(model=channels_last(state.model))
