"""A gate on the output of attention, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import attention_output_gate


@attrs.frozen(repr=False)
class AttentionOutputGate(Surgery):
    """Gate the outputs of attention: see `composable.functional.attention_output_gate`.

    Args:
        channels: Number of features of the inputs that determine the gates, at least 1.
    """

    channels: int = 12

    surgery = staticmethod(attention_output_gate)
    replaces = frozenset({"gate of attention"})
