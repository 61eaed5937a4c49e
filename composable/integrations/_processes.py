"""The processes of an external loop, which must run the algorithms alike."""

import torch
import torch.distributed as dist

from composable.core.state import State
from composable.distributed.processes import Processes


def check_agreement(state: State) -> None:
    """Check that all processes have one seed, and are at one batch.

    Raises:
        ValueError: They have not. Every process raises it.
    """
    processes = Processes.current()
    if not processes.several:
        return
    seed, batch = state.key.seed, state.timestamp.batch
    numbers = torch.tensor([seed >> 32, seed & (2**32 - 1), batch])
    extremes = torch.cat([numbers, -numbers]).to(state.device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    largest, smallest = extremes.cpu().chunk(2)
    if not torch.equal(largest, -smallest):
        raise ValueError(
            f"the {processes.size} processes have different seeds, or are at different batches "
            f"(rank {processes.rank}: seed={seed}, batch {batch}), so they would change the model "
            "and choose algorithms differently; pass the same seed= to adapt_loop in every "
            "process, and load the same t.state_dict()."
        )
