"""Smear, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._validators import at_least
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

    channels: int = attrs.field(default=12, validator=at_least(1))
    target: str | None = attrs.field(default=None)

    @target.validator
    def _check_target(self, _: Any, value: Any) -> None:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"target={value!r} must be the name of a module, or None.")

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
