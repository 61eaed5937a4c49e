"""Gated linear units, as an algorithm."""

from collections.abc import Callable

import attrs
from torch import Tensor

from composable.algorithms._surgery import Surgery
from composable.functional import gated_linear_units


@attrs.frozen(repr=False)
class GatedLinearUnits(Surgery):
    """Add gated linear units to feed-forward blocks: see `functional.gated_linear_units`.

    Args:
        act_fn: The activation of all blocks. None keeps the activation of each block.
        gated_layer_bias: Whether the layer before the activation has a bias.
        non_gated_layer_bias: Whether the other layer has a bias.
    """

    act_fn: Callable[[Tensor], Tensor] | None = None
    gated_layer_bias: bool = False
    non_gated_layer_bias: bool = False

    surgery = staticmethod(gated_linear_units)
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "key"})
    replaces = frozenset({"feed-forward block"})
