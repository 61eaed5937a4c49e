"""Gated linear units, as an algorithm."""

from collections.abc import Callable

import attrs
from torch import Tensor

from composable.algorithms._validators import boolean, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import gated_linear_units
from composable.functional.gated_linear_units import check_activation

__all__ = ["GatedLinearUnits"]


@attrs.frozen(repr=False)
class GatedLinearUnits(Algorithm):
    """Add gated linear units to feed-forward blocks: see `functional.gated_linear_units`.

    Args:
        act_fn: The activation of all blocks. None keeps the activation of each block.
        gated_layer_bias: Whether the layer before the activation has a bias.
        non_gated_layer_bias: Whether the other layer has a bias.
    """

    act_fn: Callable[[Tensor], Tensor] | None = attrs.field(
        default=None, validator=passes(check_activation)
    )
    gated_layer_bias: bool = attrs.field(default=False, validator=boolean)
    non_gated_layer_bias: bool = attrs.field(default=False, validator=boolean)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "key"})
    writes = frozenset({"model"})
    replaces = frozenset({"feed-forward block"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = gated_linear_units(
            state.model,
            act_fn=self.act_fn,
            gated_layer_bias=self.gated_layer_bias,
            non_gated_layer_bias=self.non_gated_layer_bias,
            generator=state.key.fold(self.name).generator(),
        )
        return state.evolve(model=model)
