"""Initialization of projections, as an algorithm."""

import attrs

from composable.algorithms._validators import in_range, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import initialize_projections

__all__ = ["InitializeProjections"]


@attrs.frozen(repr=False)
class InitializeProjections(Algorithm):
    """Initialize output projections before training: see `functional.initialize_projections`.

    Args:
        attention: "zero", "fan_in", "mimetic" or "keep".
        feed_forward: "zero", "fan_in" or "keep".
        scale: Scale of "fan_in", 0 or more.
        beta: Strength of "mimetic", 0 or more.
        noise: Standard deviation of "mimetic", 0 or more.
    """

    attention: str = attrs.field(
        default="zero", validator=one_of("zero", "fan_in", "mimetic", "keep")
    )
    feed_forward: str = attrs.field(default="zero", validator=one_of("zero", "fan_in", "keep"))
    scale: float = attrs.field(default=0.5, validator=in_range(0, ends="[)"))
    beta: float = attrs.field(default=0.05, validator=in_range(0, ends="[)"))
    noise: float = attrs.field(default=0.01, validator=in_range(0, ends="[)"))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "key"})
    writes = frozenset({"model"})
    replaces = frozenset({"weights of projections"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the weights once, before training."""
        model = initialize_projections(
            state.model,
            attention=self.attention,
            feed_forward=self.feed_forward,
            scale=self.scale,
            beta=self.beta,
            noise=self.noise,
            generator=state.key.fold(self.name).generator(),
        )
        return state if model is state.model else state.evolve(model=model)
