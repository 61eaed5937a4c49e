"""Count what the processes of a run send: functions that those processes import."""

from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import attrs
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from composable import Event
from composable.distributed import Processes
from composable.engines.reducer import _Messages
from tests.support import parallel_runs as runs
from tests.support.models import CLASSES, SIDE


class Messages(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation."""
        if func.namespace == "c10d":
            self.counts[func._opname.strip("_")] += 1
            self.bytes += sum(one.nbytes for one in args[0] if isinstance(one, Tensor))
        return func(*args, **(kwargs or {}))


def fit_counting(**options: Any) -> dict[str, Any]:
    """Train like `fit`, and add the numbers of collectives, but for those that join processes."""
    from composable.distributed.starting import join_processes

    join_processes()
    with Messages() as messages:
        result = runs.fit(**options)
    return {**result, "messages": dict(messages.counts), "bytes": messages.bytes}


class Sometimes(nn.Module):
    """A model with a layer that rank 1 does not use, and one that no rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2 * SIDE * SIDE, 8)
        self.unused = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = self.first(x.flatten(1)).relu()
        if Processes.current().rank == 0:
            x = x + self.second(x)
        return self.last(x)


class EveryOther(Sometimes):
    """A model with a layer that each second batch of training does not use."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = self.first(x.flatten(1)).relu()
        if self.training:
            self.calls += 1
            if self.calls % 2:
                x = x + self.second(x)
        return self.last(x)


class Reordered(Sometimes):
    """A model whose middle layers are in another order on rank 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        layers = [self.unused, self.second]
        x = self.first(x.flatten(1)).relu()
        for layer in layers if Processes.current().rank == 0 else layers[::-1]:
            x = layer(x).relu()
        return self.last(x)


class Written(Sometimes):
    """A model that writes buffers of many kinds, and has large ones that stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {
            "counts": torch.zeros(CLASSES, dtype=torch.int64),
            "small": torch.zeros(3, dtype=torch.uint8),
            "seen": torch.zeros(3, 1, dtype=torch.bool),
            "spectrum": torch.zeros(2, dtype=torch.complex64),
            "histogram": torch.zeros(5000, dtype=torch.int32),
            "codes": torch.zeros(5000),
            "late": torch.zeros(5000),
            "table": torch.arange(9000.0),
            "mask": torch.ones(100, 100, dtype=torch.bool),
        }
        for name, value in kinds.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        outputs: Tensor = self.last(self.first(x.flatten(1)).relu())
        if self.training:
            found = outputs.detach().argmax(1)
            self.counts += torch.bincount(found, minlength=CLASSES) * 2**33
            self.small += found[:3].to(torch.uint8)
            self.seen |= found[:3, None] == 1
            self.spectrum += torch.complex(outputs[0, :2], outputs[1, :2]).detach()
            self.histogram[found] += 1
            self.codes.data[:3] += found[:3]
            if self.counts.sum() > 2**33 * 4 * 2:  # after two steps of four examples in a shard
                self.late[:3] += found[:3]
        return outputs


def fit_and_read_buffers(**options: Any) -> dict[str, Any]:
    """Train like `fit_counting`, and return the values of the buffers too."""
    held: list[nn.Module] = []

    def keep(event: Event, state: Any) -> Any:
        held[:] = [state.model]
        return state

    result = fit_counting(**options, algorithms=[keep])
    buffers = {name: one.tolist() for name, one in held[0].named_buffers()}
    return {**result, "buffers": buffers}


class Wide(nn.Module):
    """A model with more than one message of gradients."""

    def __init__(self) -> None:
        super().__init__()
        widths = [2 * SIDE * SIDE, *[512] * 4]
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(512, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        return self.layers(x)  # type: ignore[no-any-return]


def fit_and_watch_messages(**options: Any) -> dict[str, Any]:
    """Train like `fit`, and return how many gradients there are when a message is sent."""
    found: list[int] = []
    send = _Messages.send

    def sending(messages: Any, bucket: Any) -> Any:
        found.append(sum(one.grad is not None and bool(one.grad.any()) for one in held))
        return send(messages, bucket)

    sending.__annotations__ = send.__annotations__  # which DDP checks
    built = options.pop("model")()
    held = list(built.parameters())
    with mock.patch.object(_Messages, "send", sending):
        result = runs.fit(**options, model=lambda: built)
    return {**result, "ready": found}


def build(model: type[nn.Module]) -> nn.Module:
    """Build a model from a seed."""
    torch.manual_seed(0)
    return model()


def double_gradients(event: Event, state: Any) -> Any:
    """Double the gradients of the last layer after the backward pass of each shard, on one rank."""
    if event is Event.AFTER_BACKWARD and Processes.current().rank == 1:
        state.model.last.weight.grad.mul_(2.0)
    return state


def replace_gradients(event: Event, state: Any) -> Any:
    """Do so in another tensor."""
    if event is Event.AFTER_BACKWARD and Processes.current().rank == 1:
        weight = state.model.last.weight
        weight.grad = 2.0 * weight.grad
    return state


def fit_in_buckets(mib: float, **options: Any) -> dict[str, Any]:
    """Train like `fit_counting`, with messages of a size in MiB."""
    parallel = attrs.evolve(options.pop("parallel"), bucket_cap_mb=mib)
    return fit_counting(**options, parallel=parallel)
