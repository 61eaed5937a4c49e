"""Dropout, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import set_dropout


@attrs.frozen(repr=False)
class Dropout(Surgery):
    """Set the rates of all dropouts of the model: see `composable.functional.set_dropout`.

    Args:
        p: Probability that an element is dropped, in [0, 1).
    """

    p: float = 0.1

    surgery = staticmethod(set_dropout)
    replaces = frozenset({"dropout rate"})
