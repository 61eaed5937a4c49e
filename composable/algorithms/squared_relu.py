"""Squared ReLU, as an algorithm."""

import attrs
from attrs.validators import optional
from torch import nn

from composable._support.registry import check_class
from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import in_range, passes
from composable.functional import squared_relu

__all__ = ["SquaredReLUs"]


@attrs.frozen(repr=False)
class SquaredReLUs(Surgery):
    """Square the rectified activations of feed-forward blocks: see `functional.squared_relu`.

    Args:
        slope: Slope of negative inputs before the square, in [0, 1].
        target: A class of activations to replace. None for those of known feed-forward blocks.
    """

    slope: float = attrs.field(default=0.0, validator=in_range(0, 1))
    target: type[nn.Module] | None = attrs.field(
        default=None, validator=optional(passes(check_class))
    )

    surgery = staticmethod(squared_relu)
    after = frozenset({"GatedLinearUnits"})
    replaces = frozenset({"activation"})
