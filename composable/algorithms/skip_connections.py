"""Skip connections with learned scales, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._validators import boolean, in_range, integer_at_least, one_of, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import skip_connections
from composable.functional.stochastic_depth import describe_blocks

__all__ = ["SkipConnections"]


@attrs.frozen(repr=False)
class SkipConnections(Algorithm):
    """Add skip connections to the inputs of blocks: see `composable.functional.skip_connections`.

    Args:
        sources: "embedding", "mirrored" or "all".
        dynamic: Whether the scales depend on the token.
        last: Number of blocks, from the end, that get skip connections. None for all.
        hidden: Number of hidden features of the dynamic scales, at least 1.
        scale: Factor of the dynamic scales, above 0.
        target: The blocks: a class, or several. None for all known blocks.
    """

    sources: str = attrs.field(
        default="embedding", validator=one_of("embedding", "mirrored", "all")
    )
    dynamic: bool = attrs.field(default=False, validator=boolean)
    last: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(integer_at_least(1))
    )
    hidden: int = attrs.field(default=64, validator=integer_at_least(1))
    scale: float = attrs.field(default=0.1, validator=in_range(0, ends="()"))
    target: Any = attrs.field(
        default=None, validator=passes(lambda _, target: describe_blocks(target))
    )

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model", "key"})
    writes = frozenset({"model"})
    replaces = frozenset({"residual block"})

    def apply(self, event: Event, state: State) -> State:
        """Add the skip connections once, before training."""
        model = skip_connections(
            state.model,
            sources=self.sources,
            dynamic=self.dynamic,
            last=self.last,
            hidden=self.hidden,
            scale=self.scale,
            target=self.target,
            generator=state.key.fold(self.name).generator(),
        )
        return state if model is state.model else state.evolve(model=model)
