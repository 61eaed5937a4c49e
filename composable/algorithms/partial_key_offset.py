"""Partial key offset, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import in_range, integer_at_least
from composable.functional import partial_key_offset

__all__ = ["PartialKeyOffset"]


@attrs.frozen(repr=False)
class PartialKeyOffset(Surgery):
    """Offset a part of each key by a token: see `composable.functional.partial_key_offset`.

    Args:
        fraction: Share of the features of a key that is offset, above 0 and below 1.
        every: Which blocks are changed: every so many, from the first on.
    """

    fraction: float = attrs.field(default=0.5, validator=in_range(0, 1, ends="()"))
    every: int = attrs.field(default=4, validator=integer_at_least(1))

    surgery = staticmethod(partial_key_offset)
    replaces = frozenset({"offset of keys"})
