"""Exclusive self-attention, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import exclusive_self_attention


@attrs.frozen(repr=False)
class ExclusiveSelfAttention(Surgery):
    """Take a token's own value out of attention: `composable.functional.exclusive_self_attention`.

    Args:
        learned: Whether the removed share is learned. By default all of it is removed.
    """

    learned: bool = False

    surgery = staticmethod(exclusive_self_attention)
    replaces = frozenset({"own value of attention"})
