"""Sums of tensors over the shards of a global batch."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from composable.distributed.processes import Processes

__all__ = ["TreeSum", "all_reduce_exactly"]


class TreeSum:
    """A sum by a balanced binary tree, in which the order of additions is fixed.

    Consecutive parts are added in pairs, then the pairs, and so on, as soon as both are there. So
    the sum of `2**n` parts has the same bits if several processes add `2**m` of them each.

    Example:
        >>> from composable.distributed.reduction import TreeSum
        >>> total = TreeSum()
        >>> for part in torch.arange(8.0):
        ...     total.add([part])
        >>> total.value
        [tensor(28.)]
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the next part, a list of tensors."""
        level, part = 0, list(tensors)
        while self._open and self._open[-1][0] == level:
            _, left = self._open.pop()
            level, part = level + 1, [a + b for a, b in zip(left, part, strict=True)]
        self._open.append((level, part))

    @property
    def value(self) -> list[Tensor]:
        """The sum of all parts."""
        *rest, (_, total) = self._open
        for _, left in reversed(rest):  # only if their number is not a power of two
            total = [a + b for a, b in zip(left, total, strict=True)]
        return total


def all_reduce_exactly(flat: Tensor, processes: Processes) -> Tensor:
    """Sum a tensor over the processes by a balanced binary tree.

    Each process sums a slice of the tensors of all. The traffic is that of a ring all-reduce, and
    the sum is bit-identical for every backend and, together with `TreeSum`, for every number of
    processes.

    Args:
        flat: A tensor of one dimension.
        processes: The processes of the run.
    """
    if not processes.several:
        return flat
    sent = torch.nn.functional.pad(flat, (0, -len(flat) % processes.size))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    total = TreeSum()
    for part in received.chunk(processes.size):
        total.add([part])
    whole = torch.empty_like(sent)
    dist.all_gather(list(whole.chunk(processes.size)), total.value[0])
    return whole[: len(flat)]
