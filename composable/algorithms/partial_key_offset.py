"""Partial key offset, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import partial_key_offset


@attrs.frozen(repr=False)
class PartialKeyOffset(Surgery):
    """Offset a part of each key by a token: see `composable.functional.partial_key_offset`.

    Args:
        fraction: Share of the features of a key that is offset, above 0 and below 1.
        every: Which blocks are changed: every so many, from the first on.
    """

    fraction: float = 0.5
    every: int = 4

    surgery = staticmethod(partial_key_offset)
    replaces = frozenset({"offset of keys"})
