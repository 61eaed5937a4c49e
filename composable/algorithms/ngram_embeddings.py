"""Hashed n-gram embeddings, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import ngram_embeddings


@attrs.frozen(repr=False)
class NGramEmbeddings(Surgery):
    """Add embeddings of the last tokens: see `composable.functional.ngram_embeddings`.

    `optimizers` that are functions of the parameters can give the table a separate optimizer or
    learning rate: the groups of `composable.optim` have it in the group "tables".

    Args:
        n: Length of the longest n-gram, at least 2.
        rows: Number of rows of the table. By default as many as fit into `megabytes`.
        megabytes: Maximum size of the table, in units of 10**6 bytes.
        sparse: Whether the gradient of the table is sparse.
        target: The name of the token embedding, if it is not found.
    """

    n: int = 3
    rows: int | None = None
    megabytes: float = 64.0
    sparse: bool = False
    target: str | None = None

    surgery = staticmethod(ngram_embeddings)
    replaces = frozenset({"token embedding"})
