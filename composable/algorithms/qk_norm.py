"""Query-key normalization, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import qk_norm


@attrs.frozen(repr=False)
class QKNorm(Surgery):
    """Normalize queries and keys: see `composable.functional.qk_norm`.

    Args:
        gain: The gain of each head, or its initial value, above 0.
        learned: Whether the gains are parameters.
    """

    gain: float = 1.0
    learned: bool = True

    surgery = staticmethod(qk_norm)
    replaces = frozenset({"norm of queries and keys"})
