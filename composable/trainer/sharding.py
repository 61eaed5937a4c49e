"""Divide the parameters of a run among its processes."""

from composable.core.state import State
from composable.distributed.fsdp import FSDP2, shard_model
from composable.distributed.processes import Processes

__all__ = ["shard"]


def shard(state: State, strategy: FSDP2, processes: Processes) -> None:
    """Shard the model, and the module that computes the loss, in place.

    The optimizers get the new parameters in the places of the old ones.

    Raises:
        ValueError: An optimizer has a state already: it is that of whole parameters.
    """
    if any(optimizer.state for optimizer in state.optimizers):
        raise ValueError(
            "optimizers must not have a state before the model is sharded; pass them as functions "
            "of the parameters, and resume with load_path."
        )
    mesh = strategy.mesh(processes, state.device)
    replaced = shard_model(state.model, strategy, mesh)
    if state.loss_module is not None and any(True for _ in state.loss_module.parameters()):
        replaced |= shard_model(state.loss_module, strategy, mesh)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(one, one) for one in group["params"]]
