"""Data parallelism whose sums have the same bits for any number of processes."""

import attrs
from torch import Tensor

from composable.core.state import State
from composable.distributed.reduction import TreeSum, all_reduce_exactly
from composable.engines.buckets import buckets_of, flat_gradients, write_gradients
from composable.engines.modules import trained_parameters
from composable.engines.parallel import Parallel
from composable.engines.protocol import Sums
from composable.engines.sums import ShardSums

__all__ = ["Exact"]

_ALL = 2**63


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
        self.kinds = buckets_of(self.parameters, _ALL)  # the parameters of a dtype and a device
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

    def total(self, report: Tensor, counts: list[float]) -> tuple[Tensor, list[float]]:
        """Sum over the processes, and set `.grad`."""
        report, counts = super().total(report, counts + list(map(float, self.present)))
        present = [bool(one) for one in counts[-len(self.present) :]]
        for kind, flat in zip(self.kinds, self.gradients.value, strict=True):
            parameters = [self.parameters[i] for i in kind]
            write_gradients(parameters, self.all_reduce(flat), [present[i] for i in kind])
        return report, counts

    def all_reduce(self, flat: Tensor) -> Tensor:
        """Sum a tensor over the processes in a fixed order."""
        return all_reduce_exactly(flat, self.processes)
