"""Fully sharded data parallelism: the parameters of a run are sharded by `fully_shard`."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, ClassVar

import attrs
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.optim import Optimizer

from composable.core.state import State
from composable.distributed.fsdp import FSDP2
from composable.engines.engine import Setup, Sums
from composable.engines.initialization import replace_parameters
from composable.engines.modules import check_dense, largest_modules
from composable.engines.partitioned import Partitioned
from composable.engines.sums import ShardSums
from composable.optim.per_name import update_of


@attrs.define(eq=False)
class Sharded(Partitioned):
    """The engine of `FSDP2`, whose backward pass reduces gradients."""

    modules: list[FSDPModule] = attrs.field(init=False, factory=list)
    """What is sharded."""

    loads_parts: ClassVar[bool] = True

    def prepare(self, state: State, setup: Setup) -> State:
        """Shard the model, and the module that computes the loss.

        Raises:
            ValueError: An optimizer has a state already, for whole parameters.
        """
        if any(map(_has_stepped, state.optimizers)):
            raise ValueError(
                "optimizers must not have a state before the model is sharded; pass them as "
                "functions of the parameters, and resume with load_path."
            )
        check_dense(state, "FSDP2")
        return super().prepare(state, setup)

    def place(self, state: State, setup: Setup) -> None:
        """Shard the modules one after another: initialize each first, or copy rank 0's.

        So no process has more than the largest of them besides its parts. The optimizers get the
        new parameters in the places of the old ones.

        Raises:
            ProcessError: The models differ.
        """
        strategy: FSDP2 = self.strategy  # type: ignore[assignment]
        options = {
            "mesh": strategy.mesh(self.processes, state.device),
            "reshard_after_forward": strategy.reshard_after_forward,
            "mp_policy": strategy.mixed_precision or MixedPrecisionPolicy(),
            "offload_policy": CPUOffloadPolicy() if strategy.offload else OffloadPolicy(),
        }
        if not setup.resumes:
            self.check_same_models(state)
        for module in state.modules.values():
            if module is not state.model and not any(True for _ in module.parameters()):
                continue
            initialization, sent = self.initialization(module, state, reuse=True), set[Tensor]()
            wrapped = _wrapped(strategy, state) if module is state.model else []
            for part in [*wrapped, module]:
                replace_parameters(state.optimizers, initialization.fill(part))
                if not setup.resumes:
                    tensors = (t for t in chain(part.parameters(), part.buffers()) if t not in sent)
                    self.broadcast(t for t in tensors if not hasattr(t, "device_mesh"))
                    sent.update(part.buffers())
                replace_parameters(state.optimizers, shard(part, options))
            self.modules += [module]  # type: ignore[list-item]  # fully_shard changes its class
            if any(map(update_of, state.optimizers)):  # a loss may call parts of the model first
                fully_shard.state(module)._lazy_init()  # type: ignore[attr-defined]
        self.share_work(state)

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

    In the other passes they are accumulated in the process, unless the strategy reduces each.
    """

    def __init__(self, engine: Sharded, state: State) -> None:
        super().__init__(engine, state)
        strategy: FSDP2 = engine.strategy  # type: ignore[assignment]
        self.modules = engine.modules
        self.each = strategy.reduce_each_microbatch

    def begin_part(self, last: bool) -> None:
        """Say whether the backward pass reduces."""
        for module in self.modules:
            if self.each:
                module.set_requires_all_reduce(last)
            else:
                module.set_requires_gradient_sync(last)


def _wrapped(strategy: FSDP2, state: State) -> list[nn.Module]:
    """Return the modules that are sharded by themselves, children first.

    The loss of an update may call its largest modules without the model.
    """
    found = strategy.wrapped(state.model)
    for optimizer in filter(update_of, state.optimizers):
        held = [p for group in optimizer.param_groups for p in group["params"]]
        found += largest_modules(state.model, held)
    chosen = set(found) - {state.model}
    return [module for module in reversed([*state.model.modules()]) if module in chosen]


def _has_stepped(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's state has changed since its construction."""
    return any(bool(values.get("step", 1)) for values in optimizer.state.values())


def shard(module: nn.Module, options: Mapping[str, Any]) -> dict[Tensor, Tensor]:
    """Shard a module in place, whose children may be sharded already.

    Returns:
        The new parameters by the old ones.

    Raises:
        ValueError: A parameter is not contiguous.
    """
    named = module.named_parameters(remove_duplicate=False)
    before = {name: p for name, p in named if not hasattr(p, "device_mesh")}
    for name, parameter in before.items():
        if not parameter.is_contiguous():
            raise ValueError(
                f"{name} has the strides {parameter.stride()}, and only contiguous parameters can "
                "be sharded; omit ChannelsLast, or use parallel='ddp'."
            )
    fully_shard(module, **options)
    after = dict(module.named_parameters(remove_duplicate=False))
    return {old: after[name] for name, old in before.items()}
