"""Initialization of projections, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import initialize_projections


@attrs.frozen(repr=False)
class InitializeProjections(Surgery):
    """Initialize output projections before training: see `functional.initialize_projections`.

    Args:
        attention: "zero", "fan_in", "mimetic" or "keep".
        feed_forward: "zero", "fan_in" or "keep".
        scale: Scale of "fan_in", 0 or more.
        beta: Strength of "mimetic", 0 or more.
        noise: Standard deviation of "mimetic", 0 or more.
    """

    attention: str = "zero"
    feed_forward: str = "zero"
    scale: float = 0.5
    beta: float = 0.05
    noise: float = 0.01

    surgery = staticmethod(initialize_projections)
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "key"})
    replaces = frozenset({"weights of projections"})
