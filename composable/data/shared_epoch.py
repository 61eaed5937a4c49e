"""The epoch of an order that depends on it, in the main process and in workers."""

import os

import torch

from composable.data.fetching import current_fetch

__all__ = ["SharedEpoch"]

_TOLD, _TOLD_WITHIN = 1, 2


class SharedEpoch:
    """The epoch of the fetch in progress, and outside `seeded_batches` the one that was set.

    An iterable that sets the epoch while it is iterated over, as one does that repeats a loader,
    keeps its own. It is in shared memory, so that persistent workers see a change.
    """

    def __init__(self) -> None:
        self._value = torch.zeros(2, dtype=torch.int64)  # the epoch, and who has set it
        self._value.share_memory_()  # type: ignore[no-untyped-call]

    def set(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._value[0] = epoch
        self._value[1].clamp_(min=_TOLD if current_fetch() is None else _TOLD_WITHIN)

    def current(self) -> int:
        """Return the epoch."""
        fetch, (epoch, told) = current_fetch(), self._value.tolist()
        if fetch is None or told == _TOLD_WITHIN:
            return int(epoch)
        # What a worker has inherited is of the epoch in which it was started.
        inherited = fetch.process != os.getpid()
        return int(epoch) if inherited and told else fetch.epoch
