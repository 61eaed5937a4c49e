"""Divide the parameters of a run among its processes."""

from collections.abc import Callable

from torch import nn

from composable.core.state import State
from composable.distributed.fsdp import FSDP2, reducing_last, shard_model
from composable.distributed.processes import Processes

__all__ = ["shard"]


def shard(state: State, strategy: FSDP2, processes: Processes) -> Callable[[bool], None]:
    """Shard the model, and the module that computes the loss, in place.

    The optimizers get the new parameters in the places of the old ones.

    Returns:
        A function to call before each backward pass: see `reducing_last`.

    Raises:
        ValueError: An optimizer has a state already: it is that of whole parameters.
    """
    if any(optimizer.state for optimizer in state.optimizers):
        raise ValueError(
            "optimizers must not have a state before the model is sharded; pass them as functions "
            "of the parameters, and resume with load_path."
        )
    mesh = strategy.mesh(processes, state.device)
    modules = [state.model]
    if state.loss_module is not None and any(True for _ in state.loss_module.parameters()):
        modules.append(state.loss_module)
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    for module in modules:
        replaced |= shard_model(module, strategy, mesh)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(one, one) for one in group["params"]]
    return reducing_last(modules, strategy)
