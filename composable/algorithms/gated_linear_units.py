"""Gated linear units, as an algorithm."""

from collections.abc import Callable
from typing import Any

import attrs
from torch import Tensor

from composable.algorithms._validators import flag
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import gated_linear_units

__all__ = ["GatedLinearUnits"]


def _activation(_: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if isinstance(value, type) or not (value is None or callable(value)):
        raise TypeError(
            f"{attribute.name}={value!r} must be a function of tensors, such as "
            "torch.nn.functional.gelu, a module, such as torch.nn.GELU(), or None."
        )


@attrs.frozen(repr=False)
class GatedLinearUnits(Algorithm):
    """Make feed-forward blocks gated: see `composable.functional.gated_linear_units`.

    Args:
        act_fn: The activation of all blocks; None for that which each has.
        gated_layer_bias: Whether the layer before the activation has a bias.
        non_gated_layer_bias: Whether the layer that scales it has one.
    """

    act_fn: Callable[[Tensor], Tensor] | None = attrs.field(default=None, validator=_activation)
    gated_layer_bias: bool = attrs.field(default=False, validator=flag)
    non_gated_layer_bias: bool = attrs.field(default=False, validator=flag)

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
