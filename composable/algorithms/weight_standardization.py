"""Weight standardization, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import weight_standardization


@attrs.frozen(repr=False)
class WeightStandardization(Surgery):
    """Standardize convolutions: see `composable.functional.weight_standardization`.

    Args:
        n_last_layers_ignore: Number of convolutions, counted from the last, to skip.
    """

    n_last_layers_ignore: int = 0

    surgery = staticmethod(weight_standardization)
    replaces = frozenset({"weights of convolutions"})
