"""Fully sharded data parallelism: the parameters of a run are sharded by `fully_shard`."""

from typing import Any

import attrs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from composable.core.state import State
from composable.distributed.fsdp import FSDP2
from composable.engines.modules import modules_of
from composable.engines.partitioned import Partitioned
from composable.engines.protocol import Setup, Sums
from composable.engines.sums import ShardSums

__all__ = ["Sharded"]


@attrs.define(eq=False)
class Sharded(Partitioned):
    """The engine of `FSDP2`, whose backward pass reduces gradients."""

    modules: list[FSDPModule] = attrs.field(init=False, factory=list)
    """What is sharded."""

    def prepare(self, state: State, setup: Setup) -> State:
        """Shard the model, and the module that computes the loss.

        The optimizers get the new parameters in the places of the old ones.

        Raises:
            ValueError: An optimizer has a state already: it is that of whole parameters.
        """
        state = super().prepare(state, setup)
        if any(optimizer.state for optimizer in state.optimizers):
            raise ValueError(
                "optimizers must not have a state before the model is sharded; pass them as "
                "functions of the parameters, and resume with load_path."
            )
        strategy: FSDP2 = self.strategy  # type: ignore[assignment]
        mesh = strategy.mesh(self.processes, state.device)
        replaced: dict[nn.Parameter, nn.Parameter] = {}
        for module in modules_of(state):
            if module is state.model or any(True for _ in module.parameters()):
                replaced |= shard_model(module, strategy, mesh)
                self.modules += [module]  # type: ignore[list-item]  # fully_shard changes its class
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [replaced.get(one, one) for one in group["params"]]
        return state

    def shard_sums(self, state: State) -> Sums:
        """Return sums of losses and buffers: the backward pass sums gradients."""
        return ScatteredSums(self, state)

    def check_whole(self, message: str) -> None:
        """Raise a ValueError: each process has a part of the parameters."""
        raise ValueError(message)

    def writes_together(self, weights_only: bool) -> bool:
        """Return True: each process writes its part."""
        return True


class ScatteredSums(ShardSums):
    """Sums of losses and buffers; gradients are reduced in the last backward pass of a step.

    Those of the other passes are accumulated in the process, unless the strategy reduces each.
    """

    def __init__(self, engine: Sharded, state: State) -> None:
        super().__init__(engine, state)
        self.modules = engine.modules
        self.each = engine.strategy.reduce_each_microbatch  # type: ignore[union-attr]

    def begin_part(self, last: bool) -> None:
        """Say whether the backward pass reduces."""
        for module in self.modules:
            if self.each:
                module.set_requires_all_reduce(last)
            else:
                module.set_requires_gradient_sync(last)


def shard_model(
    model: nn.Module, strategy: FSDP2, mesh: DeviceMesh
) -> dict[nn.Parameter, nn.Parameter]:
    """Shard a model in place, and return the new parameters by the old ones."""
    before = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in before.items():
        if not parameter.is_contiguous():
            raise ValueError(
                f"{name} has the strides {parameter.stride()}, and only contiguous parameters can "
                "be sharded; omit ChannelsLast, or use parallel='ddp'."
            )
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": strategy.reshard_after_forward,
        "mp_policy": strategy.mixed_precision or MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if strategy.offload else OffloadPolicy(),
    }
    for module in strategy.wrapped(model):
        if strategy.checkpointing:
            # The functional form of torch.utils.checkpoint: names of parameters stay.
            from torch.distributed._composable import (  # type: ignore[attr-defined]
                checkpoint,
            )

            checkpoint(module)
        fully_shard(module, **options)
    fully_shard(model, **options)
    after = dict(model.named_parameters(remove_duplicate=False))
    return {old: after[name] for name, old in before.items()}
