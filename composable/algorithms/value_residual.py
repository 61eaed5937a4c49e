"""Value residual, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import value_residual


@attrs.frozen(repr=False)
class ValueResidual(Surgery):
    """Add the values of the first attention to later ones: see `functional.value_residual`.

    Args:
        share: Initial share of the first values, in [0, 1].
    """

    share: float = 0.5

    surgery = staticmethod(value_residual)
    replaces = frozenset({"values of attention"})
