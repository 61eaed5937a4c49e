"""Permutations that are computed, in the place of stored ones: for large datasets."""

from math import isqrt

from torch import Tensor

from composable._support.hashing import hash_integers
from composable.core.key import Key

_ROUNDS = 8


def permute(positions: Tensor, length: int, key: Key) -> Tensor:
    """Return where a random permutation of `range(length)` maps some positions.

    It needs no memory beyond that for the positions, and the time is proportional to their number.

    The positions are written as pairs of a row and a column of an almost square table, and the rows
    are shifted by a hash of the column, and the columns by a hash of the row, in turn: a Feistel
    network. A position that lands in a cell of the table beyond `length` moves on until it lands
    within it, so that the result is a permutation.

    Args:
        positions: Integers from 0 to `length - 1`.
        length: The number of positions that are permuted.
        key: The key that determines the permutation.

    Example:
        >>> import torch
        >>> from composable import Key
        >>> from composable.data.permutation import permute
        >>> order = permute(torch.arange(10), 10, Key(17))
        >>> sorted(order.tolist()) == list(range(10))
        True
    """
    columns = isqrt(length - 1) + 1
    rows = -(-length // columns)
    seeds = [key.fold(number).seed for number in range(_ROUNDS)]
    new = _shuffle(positions, rows, columns, seeds)
    while len(outside := (new >= length).nonzero().flatten()):
        new[outside] = _shuffle(new[outside], rows, columns, seeds)
    return new


def _shuffle(positions: Tensor, rows: int, columns: int, seeds: list[int]) -> Tensor:
    row, column = positions // columns, positions % columns
    for row_seed, column_seed in zip(seeds[::2], seeds[1::2], strict=True):
        row = (row + hash_integers(column, row_seed)) % rows
        column = (column + hash_integers(row, column_seed)) % columns
    return row * columns + column
