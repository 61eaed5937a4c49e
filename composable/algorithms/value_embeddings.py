"""Value embeddings, as an algorithm."""

from collections.abc import Sequence

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import value_embeddings


@attrs.frozen(repr=False)
class ValueEmbeddings(Surgery):
    """Add embeddings of the tokens to the values of attention: see `functional.value_embeddings`.

    Args:
        layers: Numbers of the layers, from 0, or from -1 for the last. None for all.
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    layers: Sequence[int] | None = None
    channels: int = 12
    target: str | None = None

    surgery = staticmethod(value_embeddings)
    replaces = frozenset({"values of attention"})
