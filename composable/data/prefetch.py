"""Fetch the next batch, and copy it to a GPU, during the step of the current one."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import to_device


class Copies:
    """How batches are copied to a device: here not at all.

    Processes on CPUs fetch ahead too, since they tell one another of each batch that is fetched.
    """

    def copy(self, batch: Any) -> Any:
        """Start to copy a batch, and return the copy, which may not be complete."""
        return batch

    def wait(self, batch: Any) -> None:
        """Let the computation that follows wait for the copy."""


class CopyStream(Copies):
    """A stream of a GPU that copies batches beside the stream that computes.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.Stream(device)

    def copy(self, batch: Any) -> Any:
        """Start to copy a batch from pinned memory, and return the copy.

        PyTorch keeps pinned memory until the copy has ended.
        """
        with self.stream:
            return map_tensors(self._move, batch)

    def _move(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def wait(self, batch: Any) -> None:
        """Let the current stream wait for the copy; the host does not wait."""
        current = torch.accelerator.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors_of(batch):
            # Its memory belongs to the other stream, and is used by this one.
            if tensor.device.type == self.device.type:
                tensor.record_stream(current)


_END = object()


class Prefetcher(Iterator[Any]):
    """Batches on a device, of which the next can be fetched and copied ahead.

    An error of the loader is raised where its batch would be returned.

    Args:
        batches: The batches on the host.
        copies: How they are copied.

    Example:
        >>> from composable.data.prefetch import Prefetcher
        >>> class Log:
        ...     copy = staticmethod(lambda batch: print("copies", batch) or batch)
        ...     wait = staticmethod(lambda batch: print("waits for", batch))
        >>> batches = Prefetcher([1, 2], Log())
        >>> batches.fetch()
        copies 1
        >>> next(batches), batches.is_ahead
        waits for 1
        (1, False)
    """

    def __init__(self, batches: Iterable[Any], copies: Copies) -> None:
        self._batches = iter(batches)
        self._copies = copies
        self._pending: list[tuple[Any, Exception | None]] = []

    @property
    def is_ahead(self) -> bool:
        """Whether the next batch was fetched, and was not returned."""
        return bool(self._pending)

    def fetch(self) -> None:
        """Fetch the next batch, and start to copy it, unless this was done."""
        if not self._pending:
            self._pending.append(self._fetch())

    def _fetch(self) -> tuple[Any, Exception | None]:
        try:
            batch = next(self._batches, _END)
            return batch if batch is _END else self._copies.copy(batch), None
        except Exception as error:  # raised where its batch is due, as without fetching ahead
            return _END, error

    def __next__(self) -> Any:
        self.fetch()
        batch, error = self._pending.pop()
        if error is not None:
            raise error
        if batch is _END:
            raise StopIteration
        self._copies.wait(batch)
        return batch


def on_device(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Iterate over batches on a device; on the CPU they are what the loader returns.

    A GPU copies a batch while it computes what was launched before.
    """
    if device.type == "cpu":
        return batches
    if has_streams(device):
        return Prefetcher(batches, CopyStream(device))
    return (to_device(batch, device) for batch in batches)


def has_streams(device: torch.device) -> bool:
    """Return whether a device copies while it computes; "mps" and "meta" have no other stream."""
    return device.type not in ("cpu", "mps", "meta")
