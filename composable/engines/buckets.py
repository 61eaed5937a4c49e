"""Gradients as flat tensors, and their sums over processes during the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composable.distributed.processes import Processes

__all__ = ["OverlappedSum", "buckets_of", "flat_gradients", "write_gradients"]

_BYTES = 4 * 2**20
"""The size from which gradients are sent: far above the latency of a message in its time."""
_CARRIERS = (torch.float32, torch.float64)
"""The dtypes of messages that a report of losses and statistics may be a part of."""


def buckets_of(parameters: Sequence[Tensor], size: int = _BYTES) -> list[list[int]]:
    """Return the numbers of the parameters of each message, those of the last layers first.

    Their gradients are computed first. A message has gradients of one dtype and device.

    Args:
        parameters: The parameters, in the order of the model.
        size: Number of bytes from which a message has no further gradients.

    Example:
        >>> from composable.engines.buckets import buckets_of
        >>> buckets_of([torch.ones(2), torch.ones(2), torch.ones(1)], size=12)
        [[2, 1], [0]]
    """
    full: list[list[int]] = []
    filling: dict[Any, list[int]] = {}
    for i in reversed(range(len(parameters))):
        kind = parameters[i].dtype, parameters[i].device
        filling.setdefault(kind, []).append(i)
        if sum(parameters[j].nbytes for j in filling[kind]) >= size:
            full.append(filling.pop(kind))
    return full + list(filling.values())


def flat_gradients(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
    """Return gradients as a tensor of one dimension; missing ones are 0."""
    filled = [
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip(parameters, grads, strict=True)
    ]
    return torch.cat([_real(_dense(one)).reshape(-1) for one in filled])


def write_gradients(parameters: Sequence[Tensor], flat: Tensor, present: Sequence[bool]) -> None:
    """Set the gradients to parts of a flat tensor, or to None where none is present."""
    likes = [_real(parameter.detach()) for parameter in parameters]
    parts = flat.split_with_sizes([like.numel() for like in likes])
    for parameter, like, part, there in zip(parameters, likes, parts, present, strict=True):
        grad = part.view(like.shape)
        if parameter.is_complex():
            grad = torch.view_as_complex(grad.clone())
        parameter.grad = grad if there else None


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class OverlappedSum:
    """The sum of gradients over the processes, which starts while others are computed.

    The last message has a report too, so that a small model needs one message only.

    Args:
        parameters: The parameters, the same on every process.
        processes: The processes of the run.
    """

    def __init__(self, parameters: Sequence[Tensor], processes: Processes) -> None:
        self.parameters, self.processes = parameters, processes
        self.buckets = buckets_of(parameters)
        self._missing = [len(bucket) for bucket in self.buckets]
        self._sent: list[tuple[Tensor, Any]] = []
        self._versions: dict[int, tuple[Tensor | None, int]] = {}
        self._hooks: list[Any] = []

    def arm(self) -> None:
        """Send gradients during the backward pass that follows, the last one of a step."""
        for number, bucket in enumerate(self.buckets[:-1]):
            for i in bucket:
                parameter: Any = self.parameters[i]
                hook = parameter.register_post_accumulate_grad_hook(self._arrival(number))
                self._hooks.append(hook)

    def disarm(self) -> None:
        """Remove the hooks of the backward pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrival(self, number: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self._missing[number] -= 1
            # In the same order on every process, whatever the order of the backward pass.
            while len(self._sent) < len(self.buckets) - 1 and self._missing[len(self._sent)] <= 0:
                self._send()

        return arrived

    def _send(self, *more: Tensor) -> None:
        bucket = self.buckets[len(self._sent)]
        parameters = [self.parameters[i] for i in bucket]
        grads = [one.grad for one in parameters]
        for i, grad in zip(bucket, grads, strict=True):
            self._versions[i] = grad, -1 if grad is None else grad._version
        flat = flat_gradients(parameters, grads)
        if more:
            flat = torch.cat([flat, *(one.to(flat) for one in more)])
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def _changed(self) -> bool:
        """Return whether gradients were changed after they were sent: by a second backward pass."""
        return any(
            self.parameters[i].grad is not grad or (grad is not None and grad._version != version)
            for i, (grad, version) in self._versions.items()
        )

    def finish(self, report: Tensor, counts: list[float]) -> tuple[Tensor, list[float]]:
        """Set `.grad` to the sums, and return those of a report and of counts.

        Args:
            report: Values on the device of the parameters, in float64.
            counts: Numbers that are needed on the CPU.
        """
        self.disarm()
        while len(self._sent) < len(self.buckets) - 1:
            self._send()
        present = [float(one.grad is not None) for one in self.parameters]
        counts = [float(self._changed()), *counts, *present]
        report, counts = self._finish_messages(report, counts)
        if counts[0]:
            self._sent.clear()
            for _ in self.buckets:
                self._send()
        there = [bool(one) for one in counts[len(counts) - len(present) :]]
        for bucket, (flat, work) in zip(self.buckets, self._sent, strict=True):
            work.wait()
            parameters = [self.parameters[i] for i in bucket]
            size = sum(_real(one.detach()).numel() for one in parameters)
            write_gradients(parameters, flat[:size], [there[i] for i in bucket])
        return report, counts[1 : len(counts) - len(present)]

    def _finish_messages(self, report: Tensor, counts: list[float]) -> tuple[Tensor, list[float]]:
        on_cpu = report.device.type == "cpu"
        sent = [report, report.new_tensor(counts)] if on_cpu else [report]
        size = sum(map(len, sent))
        if self.buckets and self.parameters[self.buckets[-1][0]].dtype in _CARRIERS:
            self._send(*sent)
            flat, work = self._sent[-1]
            work.wait()
            total = flat[len(flat) - size :].to(report)
        else:
            total = self.processes.sum(torch.cat(sent))
            if self.buckets:
                self._send()
        if on_cpu:  # what is on a GPU could not be read without waiting for it
            return total[: len(report)], total[len(report) :].tolist()
        return total, self.processes.sum(torch.tensor(counts, dtype=torch.float64)).tolist()
