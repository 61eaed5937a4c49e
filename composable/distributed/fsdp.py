"""Fully sharded data parallelism, by torch.distributed.fsdp."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from composable._support.checks import check_count, check_flag
from composable.distributed.processes import Processes
from composable.distributed.strategies import DDP, Strategy

_FLAGS = ("reshard_after_forward", "offload", "reduce_each_microbatch")


@attrs.frozen
class FSDP2(Strategy):
    """Fully sharded data parallelism: parameters, gradients and optimizer state are divided.

    The model is sharded by `torch.distributed.fsdp.fully_shard`, after all algorithms that replace
    layers. `shards`, `data` and `timeout` are as in `DDP`. The same run on another number of
    processes has the same losses, to rounding, if `shards` is the same.

    Args:
        replicas: Number of groups of processes that each hold the whole model (HSDP): gradients
            are reduced within a group, and then between the groups. It divides the number of
            processes. Default: 1, so that all processes together hold one copy.
        wrap: The modules whose parameters are gathered together: types of modules, or a function of
            a module. Default: the items of each `nn.ModuleList` and `nn.Sequential` that have
            parameters, such as the blocks of a transformer, unless they share a parameter with
            another module. The rest of the model is gathered with the model itself.
        initialize: A function that sets the parameters and buffers of a module, for a model that
            was built on the meta device. It is called for each module, after its children and after
            its `reset_parameters`. Default: the method `_init_weights` of the model, as models of
            Transformers have it.
        reshard_after_forward: Free the gathered parameters after the forward pass, and gather them
            again for the backward pass.
        mixed_precision: A `torch.distributed.fsdp.MixedPrecisionPolicy`: the dtypes of gathered
            parameters and of reductions. Default: the parameters'.
        offload: Keep the shards in the memory of the CPU.
        reduce_each_microbatch: Reduce gradients after each microbatch, which takes less memory: a
            process never holds the gradients of whole parameters. By default they are reduced once
            a step. Between the groups of `replicas` they are reduced once in any case.

    Example:
        >>> from composable.distributed import FSDP2
        >>> FSDP2(replicas=2).replicas
        2
    """

    engine: ClassVar[Any] = "composable.engines.fsdp2.Sharded"

    replicas: int = attrs.field(default=1, kw_only=True)
    wrap: Sequence[type[nn.Module]] | Callable[[nn.Module], bool] | None = attrs.field(
        default=None, kw_only=True
    )
    initialize: Callable[[nn.Module], object] | None = attrs.field(default=None, kw_only=True)
    reshard_after_forward: bool = attrs.field(default=True, kw_only=True)
    mixed_precision: MixedPrecisionPolicy | None = attrs.field(default=None, kw_only=True)
    offload: bool = attrs.field(default=False, kw_only=True)
    reduce_each_microbatch: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_count("replicas", self.replicas, 1)
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        if self.mixed_precision is not None and not isinstance(
            self.mixed_precision, MixedPrecisionPolicy
        ):
            raise TypeError(
                f"mixed_precision={self.mixed_precision!r} must be a "
                "torch.distributed.fsdp.MixedPrecisionPolicy."
            )
        types = isinstance(self.wrap, Sequence) and all(isinstance(one, type) for one in self.wrap)
        if self.wrap is not None and not callable(self.wrap) and not types:
            raise TypeError(f"wrap={self.wrap!r} must be types of modules, or a function of one.")
        if self.initialize is not None and not callable(self.initialize):
            raise TypeError(f"initialize={self.initialize!r} must be a function of a module.")

    def engine_for(self, processes: Processes, shards: int) -> Any:
        """Return the engine of a run: one process has the whole model."""
        return self.engine if processes.several else DDP().engine_for(processes, shards)

    def mesh(self, processes: Processes, device: torch.device) -> DeviceMesh:
        """Return the mesh of the processes.

        Raises:
            ValueError: `replicas` does not divide their number.
        """
        if processes.size % self.replicas:
            raise ValueError(
                f"replicas={self.replicas} must divide the number of processes, which is "
                f"{processes.size}."
            )
        if self.replicas == 1:
            return init_device_mesh(device.type, (processes.size,), mesh_dim_names=("shard",))
        shape = (self.replicas, processes.size // self.replicas)
        return init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard"))

    def wrapped(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules of a model that are sharded by themselves, children first.

        Raises:
            ValueError: `wrap` selects none, or one that shares a parameter with another module.
        """
        chosen = list(dict.fromkeys(self._chosen(model)))
        if self.wrap is not None and not chosen:
            raise ValueError(f"wrap={self.wrap!r} selects no module of {type(model).__name__}.")
        uses = Counter(map(id, _parameters(model)))
        apart = [module for module in chosen if _is_self_contained(module, uses)]
        if self.wrap is not None and apart != chosen:
            raise ValueError(
                f"wrap={self.wrap!r} selects a module that shares a parameter with another one, "
                "such as an embedding that is tied to the output: select a module around both."
            )
        return apart[::-1]

    def _chosen(self, model: nn.Module) -> Iterator[nn.Module]:
        for parent in model.modules():
            for module in parent.children():
                if any(True for _ in module.parameters()) and self._selects(parent, module):
                    yield module

    def _selects(self, parent: nn.Module, module: nn.Module) -> bool:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # they have no forward pass
            return False
        if self.wrap is None:
            return isinstance(parent, (nn.ModuleList, nn.Sequential))
        if isinstance(self.wrap, Sequence):
            return isinstance(module, tuple(self.wrap))
        return bool(self.wrap(module))


def _parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Iterate over parameters, each as often as it is used."""
    return (parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _is_self_contained(module: nn.Module, uses: Mapping[int, int]) -> bool:
    """Return whether no parameter of a module is used outside of it."""
    inside = Counter(map(id, _parameters(module)))
    return all(uses[number] == count for number, count in inside.items())
