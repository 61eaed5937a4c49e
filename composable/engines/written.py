"""The buffers that the processes of a run exchange in a step."""

from operator import is_

import torch
from torch import Tensor

from composable.distributed.processes import Processes

__all__ = ["WrittenBuffers"]

_LARGE = 4096
"""Larger buffers are exchanged only if training writes them: tables and masks stay as they are."""


class WrittenBuffers:
    """All small buffers, and those large ones that training writes: the same on every process.

    In a first step, all are exchanged, and the large ones compared with what they were. The others
    are compared by their versions from then on. After a write, all are exchanged again.

    Args:
        processes: The processes of the run.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._all: list[Tensor] = []
        self._large: list[Tensor] = []
        self._sent: list[Tensor] | None = None
        self._copies: list[Tensor] = []
        self._written: list[int] = []
        self._constants: list[tuple[Tensor, int]] = []

    @property
    def changes(self) -> bool:
        """Whether this process has written a buffer that is not exchanged."""
        return any(one._version != version for one, version in self._constants)

    def forget(self) -> None:
        """Exchange all buffers in the next step."""
        self._sent, self._constants = None, []

    def begin(self, buffers: list[Tensor]) -> list[Tensor]:
        """Return those of the buffers of a run that are exchanged in a step."""
        if not (len(buffers) == len(self._all) and all(map(is_, buffers, self._all))):
            self._all, self._large = buffers, [one for one in buffers if one.numel() > _LARGE]
            self.forget()
        if self._sent is not None:
            return self._sent
        self._copies, self._written = [one.clone() for one in self._large], [0] * len(self._large)
        return buffers

    def compare(self) -> None:
        """Find which buffers a shard has written, in a first step."""
        if self._sent is not None:
            return
        for i, (one, copy) in enumerate(zip(self._large, self._copies, strict=True)):
            self._written[i] |= not torch.equal(one, copy)

    def end(self) -> None:
        """Agree on what is exchanged from the next step on."""
        if self._sent is not None:
            return
        written = self.processes.maximum(self._written) if self._large else []
        constants = [one for one, any_ in zip(self._large, written, strict=True) if not any_]
        self._constants, self._copies = [(one, one._version) for one in constants], []
        apart = set(map(id, constants))
        self._sent = [one for one in self._all if id(one) not in apart]
