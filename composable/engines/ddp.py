"""Data parallelism: every process has the whole model, and PyTorch's DDP sums gradients."""

from collections.abc import Callable
from operator import is_
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from composable.core.event import Event
from composable.core.state import State
from composable.engines.engine import Setup, Sums
from composable.engines.modules import sparse_tables, trained_parameters
from composable.engines.parallel import Parallel
from composable.engines.reducer import GradientReducer, drop_absent, flags_like
from composable.engines.sums import ShardSums
from composable.plan.dispatch import Dispatcher


@attrs.define(eq=False)
class Replicated(Parallel):
    """The engine of `DDP`: gradients are sent while others are computed."""

    overlaps: bool = True
    """Whether gradients may be sent before all are computed."""
    reducer: GradientReducer | None = attrs.field(init=False, default=None)
    _reducers: dict[str | None, GradientReducer] = attrs.field(init=False, factory=dict)
    """The reducer of each update."""
    _observed: bool = attrs.field(init=False, default=False)

    @property
    def _options(self) -> dict[str, Any]:
        return {} if self.strategy is None else self.strategy.reduction

    @property
    def mean_gradients(self) -> bool:  # type: ignore[override]
        """Whether gradients become means, as a communication hook returns them."""
        return self._options.get("hook") is not None and self.processes.several

    def prepare(self, state: State, setup: Setup) -> State:
        """Copy the weights of rank 0; send nothing early if a process may repeat its shards."""
        self.overlaps = not setup.fits_memory
        state = super().prepare(state, setup)
        if setup.compile and self.processes.several and self.overlaps:
            outputs = split_graphs(self.forward.outputs, self._options.get("bucket_cap_mb"))
            self.forward = attrs.evolve(self.forward, outputs=outputs)
        return state

    def begin(self, description: Any, dispatcher: Dispatcher) -> None:
        """Also send nothing early if something may change gradients after the backward pass."""
        super().begin(description, dispatcher)
        self._observed = dispatcher.listens(Event.AFTER_BACKWARD)

    def shard_sums(self, state: State) -> Sums:
        """Return sums whose messages overlap with the last backward pass."""
        several = self.processes.several
        return ReducedSums(self, state) if several else ShardSums(self, state)

    @property
    def sends_early(self) -> bool:
        """Whether gradients are sent during the last backward pass of a step."""
        return self.overlaps and not self._observed

    def reducer_of(self, state: State, size: int) -> GradientReducer:
        """Return what reduces the gradients of a state: another one if the parameters differ.

        Args:
            state: The state.
            size: The size of a report.
        """
        parameters = trained_parameters(state)
        self.reducer = reducer = self._reducers.get(state.update)
        if reducer is not None:
            same = len(parameters) == len(reducer.parameters) and reducer.size == size
            if same and all(map(is_, parameters, reducer.parameters)):
                return reducer
            self.drop_reducer()
        self.reducer = self._reducers[state.update] = GradientReducer(
            parameters, size, state.device, sparse=sparse_tables(state), **self._options
        )
        return self.reducer

    def drop_reducer(self) -> None:
        """Free the memory of the reducer."""
        if self.reducer is not None:
            self.reducer.close()
        self._reducers = {k: v for k, v in self._reducers.items() if v is not self.reducer}
        self.reducer = None


class ReducedSums(ShardSums):
    """Sums of gradients by DDP, whose last message has the sums of losses and buffers too."""

    engine: Replicated
    reducer: GradientReducer

    def begin(self, state: State) -> None:
        super().begin(state)
        self.state = state
        self.loss: Any = None
        self.is_joined = False

    def begin_part(self, last: bool) -> None:
        """Prepare to send gradients in the backward pass of the last part."""
        self.is_joined = last and self.engine.sends_early
        if self.is_joined:
            self._start(self._last_report)

    def _start(self, report: Callable[[], Tensor]) -> None:
        self.reducer = self.engine.reducer_of(self.state, self.size)
        self.reducer.start(report)

    def joined(self, loss: Tensor, value: Tensor) -> Tensor:
        """Return a loss with whose backward pass gradients are sent, if it is the last one."""
        value = value.detach()
        self.loss = value if self.loss is None else self.loss + value
        return self.reducer.join(loss) if self.is_joined else loss

    def _last_report(self) -> Tensor:
        self.add_report(self.loss)
        return self.report()

    def add(self, state: State) -> None:
        """Add a shard; the report of the last one has been sent."""
        self.loss = None
        if not self.is_joined:
            super().add(state)

    def total(self) -> Tensor:
        """Send what was not sent during the last backward pass, and return the report of all."""
        if not self.is_joined:
            self._start(self.report)
        report = self.reducer.finish()
        if report is not None:
            return report
        report = self.report()
        present = flags_like(report, self.reducer.present)
        both = self.all_reduce(torch.cat([report, present]))
        drop_absent(self.reducer.parameters, both[len(report) :], self.reducer.present)
        return both[: len(report)]

    def parameters_of(self, state: State) -> list[Tensor]:
        return self.reducer.parameters

    def end(self) -> None:
        """Forget a reduction that was not completed, after an error."""
        if self.engine.reducer is not None and not self.engine.reducer.is_complete:
            self.engine.drop_reducer()


def split_graphs(
    outputs: Callable[[State], Any], bucket_cap_mb: float | None
) -> Callable[[State], Any]:
    """Let the compiler split the graphs of training where messages end, as for a DDP module.

    Args:
        outputs: Calls a compiled model.
        bucket_cap_mb: The size of a message, in MiB. Default: DDP's.
    """
    first: int = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
    size = max(int((bucket_cap_mb or 25) * 2**20), first)

    def splitting(state: State) -> Any:
        if not state.model.training:
            return outputs(state)
        before = DistributedDataParallel._active_ddp_module
        DistributedDataParallel._active_ddp_module = SimpleNamespace(  # type: ignore[assignment]
            bucket_bytes_cap=size
        )
        try:
            return outputs(state)
        finally:
            DistributedDataParallel._active_ddp_module = before

    return splitting
