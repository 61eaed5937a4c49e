"""What engines share that give each process a part of the parameters."""

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import torch.distributed as dist
from torch import Tensor

from composable._support.surgery import copy_on_write
from composable.batches.spec import BatchSpec
from composable.core.key import Key
from composable.core.state import State
from composable.data.sharding import batches_in_turn, divided_batches
from composable.distributed.processes import Processes
from composable.engines.engine import Setup
from composable.engines.modules import bind_loss
from composable.engines.parallel import Parallel
from composable.metrics import Evaluator


@attrs.define(eq=False)
class Partitioned(Parallel):
    """All processes call the model equally often; gradients are means over the processes."""

    reads_parts: ClassVar[bool] = True
    mean_gradients: ClassVar[bool] = True

    def prepare(self, state: State, setup: Setup) -> State:
        """Copy the given model, which can't be used once its parameters are in parts."""
        if state.model is setup.given and self.processes.several:
            state = bind_loss(state.evolve(model=copy_on_write(state.model)))
        return super().prepare(state, setup)

    def any_process(self, flag: Tensor) -> Tensor:
        """Return the largest value of a flag of gradients on any process."""
        if self.processes.several:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag

    def equal_parts(self, count: int) -> int:
        """Return the largest number of microbatches of a process."""
        return self.processes.maximum([count])[0]

    def agree_on_calls(self, flag: bool) -> bool:
        """Return whether any process would call the model."""
        return self.processes.any(flag)

    def evaluation_batches(
        self, evaluator: Evaluator, key: Key, processes: Processes, spec: BatchSpec
    ) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over parts of all batches, equally many on every process."""
        if not processes.several:
            return super().evaluation_batches(evaluator, key, processes, spec)
        return divided_batches(evaluator.dataloader, key, processes, spec, evaluator.batches)

    def prediction_batches(self, loader: Any, key: Key) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over whole batches, equally many on every process."""
        return batches_in_turn(loader, key, self.processes)

    @property
    def why_withdrawn(self) -> str | None:
        """Why the given model can't be used between calls; None on one process."""
        return _WITHDRAWN if self.processes.several else None


_WITHDRAWN = (
    "each process has a part of the weights. Save them with trainer.export_weights(path), which "
    "all processes call, or use trainer.state.model."
)
