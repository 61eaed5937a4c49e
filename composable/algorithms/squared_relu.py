"""Squared ReLU, as an algorithm."""

import attrs
from torch import nn

from composable.algorithms._surgery import Surgery
from composable.functional import squared_relu


@attrs.frozen(repr=False)
class SquaredReLUs(Surgery):
    """Square the rectified activations of feed-forward blocks: see `functional.squared_relu`.

    Args:
        slope: Slope of negative inputs before the square, in [0, 1].
        target: A class of activations to replace. None for known feed-forward blocks'.
    """

    slope: float = 0.0
    target: type[nn.Module] | None = None

    surgery = staticmethod(squared_relu)
    after = frozenset({"GatedLinearUnits"})
    replaces = frozenset({"activation"})
