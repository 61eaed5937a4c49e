"""Initialization of projections, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import in_range, one_of
from composable.functional import initialize_projections

__all__ = ["InitializeProjections"]


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

    attention: str = attrs.field(
        default="zero", validator=one_of("zero", "fan_in", "mimetic", "keep")
    )
    feed_forward: str = attrs.field(default="zero", validator=one_of("zero", "fan_in", "keep"))
    scale: float = attrs.field(default=0.5, validator=in_range(0, ends="[)"))
    beta: float = attrs.field(default=0.05, validator=in_range(0, ends="[)"))
    noise: float = attrs.field(default=0.01, validator=in_range(0, ends="[)"))

    surgery = staticmethod(initialize_projections)
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "key"})
    replaces = frozenset({"weights of projections"})
