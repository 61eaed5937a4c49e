"""Soft-capped logits, as an algorithm."""

import attrs

from composable.algorithms._validators import in_range, name_or_none
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import softcap_head

__all__ = ["SoftcapLogits"]


@attrs.frozen(repr=False)
class SoftcapLogits(Algorithm):
    """Bound the logits of the head: see `composable.functional.softcap_head`.

    Args:
        cap: The bound of the logits, above 0.
        target: The name of the head, if it is not found.
    """

    cap: float = attrs.field(default=30.0, validator=in_range(0, ends="()"))
    target: str | None = attrs.field(default=None, validator=name_or_none)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"head"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the head once, before training."""
        model = softcap_head(state.model, cap=self.cap, target=self.target)
        return state if model is state.model else state.evolve(model=model)
