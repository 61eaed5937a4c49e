"""Hashed n-grams: the rows of a table that belong to the last tokens, and their sum."""

from typing import Any

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from composable._support.checks import check_count, check_flag, check_tensor, is_integer

_MASK = 0xFFFFFFFF
_JOIN, _MIX = 1000003, 0x45D9F3B  # below 2**31, so that no product exceeds an int64


def hash_ngrams(
    tokens: Integer[Tensor, "*batch length"],
    *,
    rows: int,
    n: int = 3,
    document_ids: Integer[Tensor, "..."] | None = None,
) -> tuple[Int[Tensor, "*batch length orders"], Int[Tensor, "*batch length orders"]]:
    """Hash the last 2, 3, ..., `n` tokens at each position to a row of a table, and to a sign.

    The hash is a polynomial of the tokens with the 32-bit mixer of Mueller: the same on every
    device. Tokens before the start of a document count as one further token, so that the first
    token of a document differs from the same token within one.

    Args:
        tokens: Token ids `[..., length]`, 0 or more, of any integer dtype.
        rows: Number of rows of the table, from 1 to 2**31.
        n: Length of the longest n-gram, at least 2.
        document_ids: The number of the document of each token, as `pack_documents` returns it, in
            a shape that broadcasts to `tokens`. By default a row is one document.

    Returns:
        The rows, from 0 to `rows - 1`, and the signs, 1 or -1, as int64. The last dimension has the
        `n - 1` lengths.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, `tokens` is not of an integer dtype or has no
            dimension, or `document_ids` does not broadcast to it.

    Example:
        >>> rows, signs = hash_ngrams(torch.tensor([5, 7, 5, 7]), rows=1000, n=2)
        >>> rows.flatten()  # of (start, 5), (5, 7), (7, 5) and (5, 7)
        tensor([ 47, 506, 987, 506])
    """
    _check_tokens(tokens)
    _check_rows(rows)
    check_count("n", n, 2)
    check_documents(document_ids, tokens)
    tokens = tokens.long()
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    inside = torch.ones_like(places, dtype=torch.bool)
    key, keys = _mixed(tokens + 1), []
    for back in range(1, n):
        inside = inside & (places >= back)
        if document_ids is not None:
            inside = inside & (document_ids == document_ids.roll(back, -1))
        earlier = torch.where(inside, tokens.roll(back, -1) + 1, 0)
        key = _mixed(key * _JOIN + earlier)
        keys.append(key)
    hashed = torch.stack(keys, -1)
    return (hashed >> 1) % rows, 1 - 2 * (hashed & 1)


def embed_ngrams(
    tokens: Integer[Tensor, "*batch length"],
    table: Float[Tensor, "rows width"],
    *,
    n: int = 3,
    document_ids: Integer[Tensor, "..."] | None = None,
    sparse: bool = False,
) -> Float[Tensor, "*batch length width"]:
    r"""Sum the rows of a table that belong to the last 2, 3, ..., `n` tokens at each position.

    $$e_t = \sum_{k=2}^{n} s(x_{t-k+1}, \dots, x_t) \; T_{h(x_{t-k+1}, \dots, x_t)}$$

    with the rows $h$ and the signs $s$ of `hash_ngrams`. N-grams of one row with opposite signs
    don't add up, so that a collision does less harm.

    Args:
        tokens: Token ids `[..., length]`, 0 or more, of any integer dtype.
        table: The table $T$ `[rows, width]`, which all lengths share.
        n: Length of the longest n-gram, at least 2.
        document_ids: The number of the document of each token: see `hash_ngrams`.
        sparse: Whether the gradient of the table is sparse: it has the rows of these n-grams alone.

    Returns:
        A tensor `[..., length, width]`, of the dtype of `table`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: As `hash_ngrams`, or `table` has not two dimensions.

    Example:
        >>> embed_ngrams(torch.tensor([[5, 7, 5]]), torch.zeros(1000, 8)).shape
        torch.Size([1, 3, 8])
    """
    check_tensor("table", table)
    check_flag("sparse", sparse)
    if table.ndim != 2 or not table.is_floating_point():
        raise ValueError(
            f"table must be of a floating-point dtype and the shape [rows, width], not "
            f"{table.dtype} and {tuple(table.shape)}."
        )
    rows, signs = hash_ngrams(tokens, rows=len(table), n=n, document_ids=document_ids)
    vectors = nn.functional.embedding(rows, table, sparse=sparse)
    return (vectors * signs.unsqueeze(-1).to(table.dtype)).sum(-2)


class NGramEmbedding(nn.Module):
    """A table of hashed n-grams, which starts at zero: see `embed_ngrams`.

    Groups of `composable.optim` have its parameter in a separate group, "tables".

    Args:
        rows: Number of rows, from 1 to 2**31.
        width: Number of features.
        n: Length of the longest n-gram, at least 2.
        sparse: Whether the gradient of the table is sparse, as in `torch.nn.Embedding`.
        device: Device of the table.
        dtype: Dtype of the table.

    Example:
        >>> NGramEmbedding(1000, 8)(torch.tensor([[5, 7, 5]])).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        n: int = 3,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_rows(rows)
        check_count("width", width, 1)
        check_count("n", n, 2)
        check_flag("sparse", sparse)
        self.n, self.sparse = n, sparse
        self.weight = nn.Parameter(torch.zeros(rows, width, device=device, dtype=dtype))

    def forward(
        self,
        tokens: Integer[Tensor, "*batch length"],
        document_ids: Integer[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch length width"]:
        """Return the sum of the rows of each token."""
        return embed_ngrams(
            tokens, self.weight, n=self.n, document_ids=document_ids, sparse=self.sparse
        )

    def extra_repr(self) -> str:
        """Return the sizes."""
        rows, width = self.weight.shape
        return f"{rows}, {width}, n={self.n}" + (", sparse=True" if self.sparse else "")


def _mixed(values: Tensor) -> Tensor:
    """Mix the lower 32 bits of non-negative integers."""
    values = values & _MASK
    for _ in range(2):
        values = ((values ^ (values >> 16)) * _MIX) & _MASK
    return values ^ (values >> 16)


def _check_rows(rows: Any) -> None:
    check_count("rows", rows, 1)
    if rows > 2**31:
        raise ValueError(f"rows={rows} must be at most 2**31, the range of the hash.")


def _check_tokens(tokens: Any) -> None:
    check_tensor("tokens", tokens)
    if not is_integer(tokens) or not tokens.ndim:
        raise ValueError(
            f"tokens must have an integer dtype and the shape [..., length], not {tokens.dtype} "
            f"and {tuple(tokens.shape)}."
        )


def check_documents(document_ids: Any, tokens: Tensor) -> None:
    if document_ids is None:
        return
    check_tensor("document_ids", document_ids)
    shape, wide = document_ids.shape, tokens.shape
    sizes = zip(reversed(shape), reversed(wide), strict=False)  # no set: sizes may be symbolic
    same_length = len(shape) > 0 and shape[-1] == wide[-1]
    if not same_length or len(shape) > len(wide) or not all(a == 1 or a == b for a, b in sizes):
        raise ValueError(
            f"document_ids must have the shape {tuple(tokens.shape)} of tokens, or one that "
            f"broadcasts to it, not {tuple(shape)}."
        )
