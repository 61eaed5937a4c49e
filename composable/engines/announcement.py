"""What each process tells the others of its next batch."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composable.distributed.processes import Processes

_NUMBERS = 8
PACKED = 4 * _NUMBERS
"""The small integers that a process packs its numbers into."""


class Announcement:
    """Numbers of a process, and of all processes as soon as they have arrived.

    They are sent with the sums of a step, or in a message.

    Args:
        own: Returns the numbers of this process, of which the first one is not 0. It is called when
            they are sent.
        processes: The processes.
        ended: What a signal has raised in the loader of this process.
    """

    def __init__(
        self,
        own: Callable[[], list[int]],
        processes: Processes,
        ended: Exception | None = None,
    ) -> None:
        self.own, self.processes, self.ended = cache(own), processes, ended
        self._table: Tensor | None = None
        self._sent: Any = None

    def pack(self) -> Tensor:
        """Return a vector of small integers, whose sum over the processes is exact in any dtype."""
        table = torch.zeros(self.processes.size, _NUMBERS, dtype=torch.int64)
        table[self.processes.rank] = torch.tensor(self.own())
        return table.view(torch.int16).view(-1)

    def unpack(self, sums: Tensor) -> None:
        """Read the sum of what the processes have packed."""
        self._table = sums.to(torch.int16).view(torch.int64).view(-1, _NUMBERS)

    def send(self) -> None:
        """Begin to send the numbers in a message."""
        table = self._table = self.pack().view(torch.int64).view(-1, _NUMBERS)
        if self.processes.several:
            # A work would keep the connections open, for which others wait if this process fails.
            self._sent = dist.all_reduce(table, async_op=True).get_future()

    def wait(self) -> list[list[int]]:
        """Return the numbers: a list over the processes for each."""
        came = self._table is not None and (self._sent is not None or self._table[:, 0].all())
        if not came:
            self.send()  # to wait for a process that has not fetched its batch, or has failed
        if self._sent is not None:
            self._sent.wait()
        return self._table.T.tolist()  # type: ignore[union-attr]  # `send` has set it
