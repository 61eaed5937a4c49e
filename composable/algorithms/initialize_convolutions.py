"""Dirac initialization of convolutions, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import initialize_convolutions


@attrs.frozen(repr=False)
class InitializeConvolutions(Surgery):
    """Let convolutions copy their inputs at first: see `functional.initialize_convolutions`."""

    surgery = staticmethod(initialize_convolutions)
    before = frozenset(
        {"BlurPool", "Factorize", "SqueezeExcite", "WeightStandardization", "WhitenedFirstLayer"}
    )
    replaces = frozenset({"weights of convolutions"})
