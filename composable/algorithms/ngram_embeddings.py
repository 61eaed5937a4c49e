"""Hashed n-gram embeddings, as an algorithm."""

import attrs
from attrs.validators import optional

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import boolean, in_range, integer_at_least, name_or_none
from composable.functional import ngram_embeddings

__all__ = ["NGramEmbeddings"]


@attrs.frozen(repr=False)
class NGramEmbeddings(Surgery):
    """Add embeddings of the last tokens: see `composable.functional.ngram_embeddings`.

    `optimizers` that are functions of the parameters can give the table an optimizer or a learning
    rate of its own: the groups of `composable.optim` have it in the group "tables".

    Args:
        n: Length of the longest n-gram, at least 2.
        rows: Number of rows of the table. By default as many as fit into `megabytes`.
        megabytes: Maximum size of the table, in units of 10**6 bytes.
        sparse: Whether the gradient of the table is sparse.
        target: The name of the token embedding, if it is not found.
    """

    n: int = attrs.field(default=3, validator=integer_at_least(2))
    rows: int | None = attrs.field(default=None, validator=optional(integer_at_least(1)))
    megabytes: float = attrs.field(default=64.0, validator=in_range(0, ends="()"))
    sparse: bool = attrs.field(default=False, validator=boolean)
    target: str | None = attrs.field(default=None, validator=name_or_none)

    surgery = staticmethod(ngram_embeddings)
    replaces = frozenset({"token embedding"})
