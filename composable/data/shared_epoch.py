"""The epoch of a dataset whose examples depend on it, in the main process and in workers."""

import torch

from composable.data.fetching import current_fetch_epoch

__all__ = ["SharedEpoch"]


class SharedEpoch:
    """The epoch of the fetch in progress, and outside `seeded_batches` the one that was set.

    It is in shared memory, so that persistent workers see a change.
    """

    def __init__(self) -> None:
        self._value = torch.zeros((), dtype=torch.int64)
        self._value.share_memory_()  # type: ignore[no-untyped-call]

    def set(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._value.fill_(epoch)

    def current(self) -> int:
        """Return the epoch."""
        epoch = current_fetch_epoch()
        return int(self._value) if epoch is None else epoch
