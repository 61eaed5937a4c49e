"""Messages between processes, as NCCL sends them: a group of gloo on the memory of the devices.

On a GPU a message is sent on a stream of the group, which waits for the stream that computes, and
the host waits for none. `Work.wait` lets the current stream wait, and without it the use of
what was received is a race.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from tests.simgpu.extension import core

NAME = "simulated"
SENT: Counter[str] = Counter()
"""How often this process has sent messages from its device, by the names of gloo."""
NAMES = {
    **{name: name for name in ("allreduce", "broadcast", "allgather", "reduce_scatter", "reduce")},
    **{name: name for name in ("gather", "scatter", "alltoall", "alltoall_base")},
    **dict.fromkeys(("all_gather_single", "_allgather_base"), "_allgather_base"),
    **dict.fromkeys(("reduce_scatter_single", "_reduce_scatter_base"), "_reduce_scatter_base"),
}
"""The collectives of a group, and those of gloo that compute them."""


class Work(dist.Work):
    """A message that has been sent."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait for the stream of the group."""
        self.future.wait()
        return True

    def get_future(self) -> Any:
        """Return what waits so too."""
        return self.future


class Group(dist.ProcessGroup):
    """The processes of a group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self.streams: dict[torch.device, torch.Stream] = {}

    def send(self, name: str, *arguments: Any) -> Work:
        """Send a message; what the first argument has is written."""
        tensors = [one for argument in arguments for one in _tensors(argument)]
        device = next((one.device for one in tensors if one.device.type == "cuda"), None)
        if device is None:
            return getattr(self.gloo, name)(*arguments)
        SENT[name] += 1
        options, mean = arguments[-1], False
        if getattr(options, "reduceOp", None) == dist.ReduceOp.AVG:  # which gloo lacks
            options.reduceOp, mean = dist.ReduceOp.SUM, True
        stream = self.streams.setdefault(device, torch.Stream(device))
        stream.wait_stream(torch.accelerator.current_stream(device))
        future: Any = torch.futures.Future(devices=[device])
        with stream:
            written = _tensors(arguments[0])
            seen = [
                _map(one, lambda x, i=i: core.as_cpu(x, i == 0)) for i, one in enumerate(arguments)
            ]
            getattr(self.gloo, name)(*seen).wait()
            if mean:
                for one in _tensors(seen[0]):
                    one.div_(self.size())
            for one in tensors:
                one.record_stream(stream)
            future.set_result(written)
        return Work(future)

    def barrier(self, options: Any = None) -> Any:
        """Wait for the others."""
        return self.gloo.barrier()

    def allreduce_coalesced(self, tensors: Any, options: Any) -> Work:
        """Sum several tensors."""
        return [self.send("allreduce", [one], options) for one in tensors][-1]

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> Work:
        """Gather several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return [self.all_gather_single(*pair, AllgatherOptions()) for pair in pairs][-1]

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, options: Any) -> Work:
        """Sum several tensors, and keep a part of each."""
        pairs = zip(outputs, inputs, strict=True)
        return [self.reduce_scatter_single(*pair, options) for pair in pairs][-1]

    def getBackendName(self) -> str:
        """Return what libraries compare."""
        return "nccl"

    def setGroupName(self, name: str) -> None:
        """Keep the name by which operations find the group."""
        self.named = name

    def getGroupName(self) -> str:
        """Return it."""
        return self.named

    def _get_backend(self, device: torch.device) -> Any:
        return self.gloo


def _sender(name: str) -> Callable[..., Work]:
    return lambda self, *arguments: self.send(name, *arguments)


for _name, _gloo in NAMES.items():
    setattr(Group, _name, _sender(_gloo))


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [x for one in argument for x in _tensors(one)] if isinstance(argument, list) else []


def _map(argument: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(argument, torch.Tensor):
        return function(argument)
    return [_map(one, function) for one in argument] if isinstance(argument, list) else argument


def install() -> None:
    """Form groups of it where NCCL is named."""
    dist.Backend.register_backend(NAME, Group, devices=["cuda"])
    initialize = dist.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> None:
        initialize(backend and backend.replace("nccl", NAME), *arguments, **options)

    dist.init_process_group = init_process_group
    dist.is_nccl_available = lambda: True
