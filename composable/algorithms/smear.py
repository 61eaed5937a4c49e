"""Smear, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import integer_at_least, name_or_none
from composable.functional import smear

__all__ = ["Smear"]


@attrs.frozen(repr=False)
class Smear(Surgery):
    """Add a share of the previous token's embedding: see `composable.functional.smear`.

    Args:
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    channels: int = attrs.field(default=12, validator=integer_at_least(1))
    target: str | None = attrs.field(default=None, validator=name_or_none)

    surgery = staticmethod(smear)
    after = frozenset({"NGramEmbeddings"})
    replaces = frozenset({"token embedding"})
