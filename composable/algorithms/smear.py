"""Smear, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import smear


@attrs.frozen(repr=False)
class Smear(Surgery):
    """Add a share of the previous token's embedding: see `composable.functional.smear`.

    Args:
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    channels: int = 12
    target: str | None = None

    surgery = staticmethod(smear)
    after = frozenset({"NGramEmbeddings"})
    replaces = frozenset({"token embedding"})
