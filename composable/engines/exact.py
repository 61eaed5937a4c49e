"""Data parallelism whose sums have the same bits for any number of processes."""

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.state import State
from composable.distributed.shards import TreeSum, all_reduce_exactly
from composable.engines.engine import Sums
from composable.engines.modules import trained_parameters
from composable.engines.parallel import Parallel
from composable.engines.reducer import drop_absent, flags_like
from composable.engines.sums import ShardSums, as_real


@attrs.define(eq=False)
class Exact(Parallel):
    """The engine of `DDP(exact=True)`: sums over shards are formed in pairs."""

    def shard_sums(self, state: State) -> Sums:
        """Return sums in a fixed order."""
        return TreeSums(self, state)


class TreeSums(ShardSums):
    """Sums of gradients, losses and buffers by one binary tree over all shards."""

    def begin(self, state: State) -> None:
        super().begin(state)
        self.parameters = trained_parameters(state)
        self.kinds = kinds_of(self.parameters)
        self.present = [False] * len(self.parameters)
        self.gradients = TreeSum()

    def add(self, state: State) -> None:
        """Add a shard, and clear its gradients."""
        super().add(state)
        grads = [tensor.grad for tensor in self.parameters]
        self.present = [a or b is not None for a, b in zip(self.present, grads, strict=True)]
        self.gradients.add(
            [
                flat_gradients([self.parameters[i] for i in kind], [grads[i] for i in kind])
                for kind in self.kinds
            ]
        )
        for parameter in self.parameters:
            parameter.grad = None

    def total(self) -> Tensor:
        report = self.report()
        total = self.all_reduce(torch.cat([report, flags_like(report, self.present)]))
        for kind, flat in zip(self.kinds, self.gradients.value, strict=True):
            parameters = [self.parameters[i] for i in kind]
            write_flat_gradients(parameters, self.all_reduce(flat))
        drop_absent(self.parameters, total[len(report) :], self.present)
        return total[: len(report)]

    def all_reduce(self, flat: Tensor) -> Tensor:
        """Sum a tensor over the processes in a fixed order."""
        return all_reduce_exactly(flat, self.processes)


def kinds_of(parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return the numbers of the parameters of each dtype and device, the last ones first."""
    kinds: dict[Any, list[int]] = {}
    for i in reversed(range(len(parameters))):
        kinds.setdefault((parameters[i].dtype, parameters[i].device), []).append(i)
    return list(kinds.values())


def flat_gradients(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
    """Return gradients as a tensor of one dimension; missing ones are 0."""
    filled = [
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip(parameters, grads, strict=True)
    ]
    return torch.cat([as_real(_dense(tensor)).reshape(-1) for tensor in filled])


def write_flat_gradients(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Set the gradients to parts of a flat tensor."""
    likes = [as_real(parameter.detach()) for parameter in parameters]
    parts = flat.split_with_sizes([like.numel() for like in likes])
    for parameter, like, part in zip(parameters, likes, parts, strict=True):
        grad = part.view(like.shape)
        if parameter.is_complex():
            grad = torch.view_as_complex(grad.clone())
        parameter.grad = grad


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
