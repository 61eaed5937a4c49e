"""Value embeddings, as an algorithm."""

from collections.abc import Sequence

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import integer_at_least, name_or_none, passes
from composable.functional import value_embeddings
from composable.functional.value_embeddings import check_layers

__all__ = ["ValueEmbeddings"]


@attrs.frozen(repr=False)
class ValueEmbeddings(Surgery):
    """Add embeddings of the tokens to the values of attention: see `functional.value_embeddings`.

    Args:
        layers: Numbers of the layers, from 0, or from -1 for the last. None for all.
        channels: Number of features that the gate reads, at least 1.
        target: The name of the token embedding, if it is not found.
    """

    layers: Sequence[int] | None = attrs.field(default=None, validator=passes(check_layers))
    channels: int = attrs.field(default=12, validator=integer_at_least(1))
    target: str | None = attrs.field(default=None, validator=name_or_none)

    surgery = staticmethod(value_embeddings)
    replaces = frozenset({"values of attention"})
