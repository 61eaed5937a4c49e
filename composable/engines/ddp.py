"""Data parallelism: every process has the whole model, and gradients are summed in messages."""

import attrs
from torch import Tensor

from composable.core.state import State
from composable.engines.buckets import OverlappedSum
from composable.engines.modules import trained_parameters
from composable.engines.parallel import Parallel
from composable.engines.protocol import Setup, Sums
from composable.engines.sums import ShardSums

__all__ = ["Replicated"]


@attrs.define(eq=False)
class Replicated(Parallel):
    """The engine of `DDP`: messages are sent while other gradients are computed."""

    overlaps: bool = True
    """Whether messages may be sent before all gradients are computed."""

    def prepare(self, state: State, setup: Setup) -> State:
        """Copy the weights of rank 0; send nothing early if a process may repeat its shards."""
        self.overlaps = not setup.fits_memory
        return super().prepare(state, setup)

    def shard_sums(self, state: State) -> Sums:
        """Return sums whose messages overlap with the last backward pass."""
        several = self.processes.several
        return OverlappedSums(self, state) if several else ShardSums(self, state)


class OverlappedSums(ShardSums):
    """Sums of gradients, whose last message has those of losses and buffers too."""

    overlapped: OverlappedSum | None = None

    def __init__(self, engine: Replicated, state: State) -> None:
        super().__init__(engine, state)
        self.overlaps = engine.overlaps

    def begin(self, state: State) -> None:
        """Start with the first shard of this process."""
        super().begin(state)
        self.overlapped = OverlappedSum(trained_parameters(state), self.processes)

    def begin_part(self, last: bool) -> None:
        """Send the gradients of the last part as soon as they are computed."""
        if last and self.overlaps and self.overlapped is not None:
            self.overlapped.arm()

    def total(self, report: Tensor, counts: list[float]) -> tuple[Tensor, list[float]]:
        """Sum over the processes, and set `.grad`."""
        return self.overlapped.finish(report, counts)  # type: ignore[union-attr]  # begun

    def end(self) -> None:
        """Remove the hooks of the last part, after an error too."""
        if self.overlapped is not None:
            self.overlapped.disarm()
