"""Data parallelism whose sums have the same bits for any number of processes."""

import attrs
import torch
from torch import Tensor

from composable.core.state import State
from composable.distributed.reduction import TreeSum, all_reduce_exactly
from composable.engines.engine import Sums
from composable.engines.flat import flat_gradients, kinds_of, write_gradients
from composable.engines.modules import trained_parameters
from composable.engines.parallel import Parallel
from composable.engines.reducer import drop_absent, flags_like
from composable.engines.sums import ShardSums

__all__ = ["Exact"]


@attrs.define(eq=False)
class Exact(Parallel):
    """The engine of `DDP(exact=True)`: sums over shards are formed in pairs."""

    def shard_sums(self, state: State) -> Sums:
        """Return sums in a fixed order."""
        return TreeSums(self, state)


class TreeSums(ShardSums):
    """Sums of gradients, losses and buffers by one binary tree over all shards."""

    def begin(self, state: State) -> None:
        """Start with the first shard of this process."""
        super().begin(state)
        self.parameters = trained_parameters(state)
        self.kinds = kinds_of(self.parameters)
        self.present = [False] * len(self.parameters)
        self.gradients = TreeSum()

    def add(self, state: State) -> None:
        """Add a shard, and clear its gradients."""
        super().add(state)
        grads = [one.grad for one in self.parameters]
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
        """Sum over the processes, and set `.grad`."""
        report = self.report()
        total = self.all_reduce(torch.cat([report, flags_like(report, self.present)]))
        for kind, flat in zip(self.kinds, self.gradients.value, strict=True):
            parameters = [self.parameters[i] for i in kind]
            write_gradients(parameters, self.all_reduce(flat))
        drop_absent(self.parameters, total[len(report) :], self.present)
        return total[: len(report)]

    def all_reduce(self, flat: Tensor) -> Tensor:
        """Sum a tensor over the processes in a fixed order."""
        return all_reduce_exactly(flat, self.processes)
