"""The processes of a run, and what they tell one another.

Values travel as JSON in tensors of bytes: the object collectives of torch.distributed unpickle what
they receive, and need NumPy.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.checks import check_count


class ProcessError(RuntimeError):
    """The processes of a run disagree, or one of them failed."""


@attrs.frozen
class Processes:
    """The processes that train one model together.

    Args:
        rank: The number of this process, from 0.
        size: Number of processes.
        local_rank: The number of this process on its machine.

    Example:
        >>> from composable.distributed import Processes
        >>> Processes.current()
        Processes(rank=0, size=1, local_rank=0)
        >>> Processes.current().gather("ready")
        ['ready']
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def __attrs_post_init__(self) -> None:
        check_count("size", self.size, 1)
        for name in ("rank", "local_rank"):
            check_count(name, getattr(self, name))

    @classmethod
    def current(cls) -> "Processes":
        """Return the processes of the default group of torch.distributed, or this one alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return self.size > 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and reports: rank 0."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.several:
            dist.all_reduce(torch.zeros(1))  # on the CPU, whatever the device of the run

    def gather(self, value: Any) -> list[Any]:
        """Return a value of each process, in the order of their ranks, on every process.

        Args:
            value: Plain data, as JSON has it.
        """
        if not self.several:
            return [value]
        sent = _to_bytes(value)
        lengths = [length for (length,) in self.table([len(sent)])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(sent)] = sent
        received = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(received, padded)
        return [_from_bytes(tensor[:n]) for tensor, n in zip(received, lengths, strict=True)]

    def table(self, own: list[int]) -> list[list[int]]:
        """Return integers of each process, in the order of their ranks, by one message.

        Args:
            own: The integers of this process, as many as of every other.
        """
        table = torch.zeros(self.size, len(own), dtype=torch.int64)
        table[self.rank] = torch.tensor(own)
        if self.several:
            dist.all_reduce(table)
        return table.tolist()

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0 on every process; the others' values are not used.

        Args:
            value: Plain data, as JSON has it.
        """
        if not self.several:
            return value
        sent = _to_bytes(value) if self.is_main else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(sent)])
        dist.broadcast(length, 0)
        if not self.is_main:
            sent = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(sent, 0)
        return _from_bytes(sent)

    def on_main(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0 while the others wait, and return its result on every process.

        Args:
            function: Returns plain data, as JSON has it.

        Raises:
            ProcessError: It raised on rank 0, on the other ranks; rank 0 raises the error itself.
        """
        value, failure, fault = attempt(function) if self.is_main else (None, None, None)
        value, *faults = self.broadcast([value, fault])
        raise_first(failure, faults)
        return value

    def together(self, function: Callable[[], Any]) -> Any:
        """Call a function on every process; if it fails on any of them, fail on all.

        Raises:
            ProcessError: It raised on another process; where it raised, the error itself.
        """
        value, failure, fault = attempt(function)
        raise_first(failure, self.gather(fault))
        return value

    def maximum(self, values: list[int]) -> list[int]:
        """Return the elementwise maximum of integers over the processes."""
        if not self.several:
            return values
        tensor = torch.tensor(values)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def any(self, flag: bool) -> bool:
        """Return whether a flag is true on any process."""
        return bool(self.maximum([int(flag)])[0])

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, on its device."""
        if not self.several:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total


def attempt(
    function: Callable[[], Any], errors: type[BaseException] = Exception
) -> tuple[Any, BaseException | None, list[str] | None]:
    """Call a function; return its value, its error, and the type and text of that, to be sent."""
    try:
        return function(), None, None
    except errors as error:
        return None, error, [type(error).__name__, str(error)]


def raise_first(
    failure: BaseException | None,
    sent: Iterable[list[str] | None],
    known: Mapping[str, type[Exception]] = MappingProxyType({}),
) -> None:
    """Raise the error of this process, or else the first that was sent, as of a `known` type."""
    if failure is not None:
        raise failure
    for rank, error in enumerate(sent):
        if error is not None:
            kind, message = error
            text = message if kind in known else f"{kind}: {message}"
            raise known.get(kind, ProcessError)(f"rank {rank} failed: {text}")


def _to_bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Any:
    return json.loads(bytes(data.tolist()))
