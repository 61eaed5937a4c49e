"""Run ranks as threads of one process, with collectives that name a mismatch instead of hanging."""

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from composable.distributed import Processes

SECONDS = 20
"""How long a rank waits for the others in a collective."""


def run_ranks(function: Callable[[Processes], Any], size: int = 2) -> list[Any]:
    """Call a function once for each rank, each in a thread, and return the results by rank.

    The functions of `torch.distributed` that Composable calls exchange tensors between the threads.

    Args:
        function: It gets the processes of a rank.
        size: Number of ranks.

    Raises:
        AssertionError: The ranks called different collectives, or one waited in vain.
        Exception: What the first rank that failed raised.
    """
    group = _Group(size)
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        group.local.rank = rank
        try:
            results[rank] = function(Processes(rank, size))
        except BaseException as error:
            group.fail(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    names = ("all_reduce", "all_gather", "all_to_all_single", "broadcast")
    with mock.patch.multiple(dist, **{name: getattr(group, name) for name in names}):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if group.failure is not None:
        raise group.failure
    return results


class _Work:
    """A collective that has been started; its result is there after `wait`."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.finish = finish

    def get_future(self) -> "_Work":
        """Return what can be waited for, too."""
        return self

    def wait(self) -> None:
        """Wait for the result."""
        self.finish()


class _Group:
    """The collectives of the threads, which each call in the same order."""

    def __init__(self, size: int) -> None:
        self.local = threading.local()
        self.sent: list[list[tuple[Any, Tensor]]] = [[] for _ in range(size)]
        self.changed = threading.Condition()
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End the waiting of all ranks."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def send(self, name: str, tensor: Tensor, *more: Any) -> Callable[[], list[Tensor]]:
        """Send a tensor to all ranks; return a function that waits for those of all."""
        own = self.sent[self.local.rank]
        number = len(own)
        with self.changed:
            own.append(((name, tensor.shape, tensor.dtype, *more), tensor.detach().clone()))
            self.changed.notify_all()

        def arrived() -> bool:
            return self.failure is not None or all(len(one) > number for one in self.sent)

        def receive() -> list[Tensor]:
            with self.changed:
                assert self.changed.wait_for(arrived, SECONDS), f"{name} waits for another rank"
            assert self.failure is None, "another rank failed"
            calls, tensors = zip(*(one[number] for one in self.sent), strict=True)
            assert len(set(calls)) == 1, f"the ranks call different collectives: {calls}"
            return list(tensors)

        return receive

    def all_reduce(
        self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False
    ) -> Any:
        """Reduce in place: when the work is waited for, if it is asynchronous."""
        receive = self.send("all_reduce", tensor, str(op))

        def finish() -> None:
            parts = torch.stack(receive())
            maximum = op == dist.ReduceOp.MAX
            tensor.detach().copy_(parts.amax(0) if maximum else parts.sum(0, dtype=parts.dtype))

        if async_op:
            return _Work(finish)
        finish()
        return None

    def all_gather(self, received: list[Tensor], tensor: Tensor) -> None:
        """Copy the tensors of all ranks into a list."""
        for one, part in zip(received, self.send("all_gather", tensor)(), strict=True):
            one.copy_(part)

    def all_to_all_single(self, received: Tensor, tensor: Tensor) -> None:
        """Gather the slices of this rank."""
        parts = self.send("all_to_all_single", tensor)()
        slices = [part.chunk(len(parts))[self.local.rank] for part in parts]
        received.copy_(torch.cat(slices))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the tensor of a rank."""
        tensor.copy_(self.send("broadcast", tensor, source)()[source])
