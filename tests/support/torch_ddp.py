"""An engine in which PyTorch's DistributedDataParallel sums gradients, for tests."""

from typing import Any, ClassVar

import attrs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from composable.core.state import State
from composable.distributed import DDP, FSDP2
from composable.engines.parallel import Parallel
from composable.engines.protocol import Setup, Sums
from composable.engines.sums import ShardSums


def _sum(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum a bucket of gradients over the processes, where DDP would compute the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])  # type: ignore[union-attr]


@attrs.define(eq=False)
class TorchEngine(Parallel):
    """Calls the model through `DistributedDataParallel` in training."""

    ddp: Any = attrs.field(init=False)

    def prepare(self, state: State, setup: Setup) -> State:
        """Wrap the model; the state keeps the plain one."""
        state = super().prepare(state, setup)
        self.ddp = DistributedDataParallel(
            state.model, broadcast_buffers=False, find_unused_parameters=True
        )
        self.ddp.register_comm_hook(None, _sum)
        self._prepare_passes(state, self._outputs)
        return state

    def _outputs(self, state: State) -> Any:
        if state.model is not self.ddp.module or not state.model.training:
            return state.forward()
        return state.model_call(self.ddp, state.batch, state.batch_spec)

    def shard_sums(self, state: State) -> Sums:
        """Return sums of losses and buffers; gradients are summed in the last backward pass."""
        return _TorchSums(self, state)


class _TorchSums(ShardSums):
    def __init__(self, engine: TorchEngine, state: State) -> None:
        super().__init__(engine, state)
        self.ddp = engine.ddp

    def begin_part(self, last: bool) -> None:
        """Say before the forward pass whether the backward pass sums gradients."""
        self.ddp.require_backward_grad_sync = last


@attrs.frozen
class TorchDDP(DDP):
    """Data parallelism by PyTorch."""

    engine: ClassVar[Any] = TorchEngine


@attrs.frozen
class Sharding(FSDP2):
    """A strategy that a user has derived."""


class Unfinished:
    """An engine without methods."""

    processes = None


@attrs.frozen
class Undone(DDP):
    """A strategy whose engine lacks methods."""

    engine: ClassVar[Any] = Unfinished
