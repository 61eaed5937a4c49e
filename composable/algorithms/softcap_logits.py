"""Soft-capped logits, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import softcap_head


@attrs.frozen(repr=False)
class SoftcapLogits(Surgery):
    """Bound the logits of the head: see `composable.functional.softcap_head`.

    Args:
        cap: The bound of the logits, above 0.
        target: The name of the head, if it is not found.
    """

    cap: float = 30.0
    target: str | None = None

    surgery = staticmethod(softcap_head)
    replaces = frozenset({"head"})
