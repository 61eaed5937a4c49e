"""Find the engine of a strategy."""

from pkgutil import resolve_name
from typing import Any

from composable.distributed.processes import Processes
from composable.distributed.strategies import Strategy


def engine_type(strategy: Strategy, processes: Processes, shards: int) -> Any:
    """Return the class of the engine of a run.

    Args:
        strategy: The strategy.
        processes: The processes of the run.
        shards: The number of shards.
    """
    engine = strategy.engine_for(processes, shards)
    return resolve_name(engine) if isinstance(engine, str) else engine


def reads_parts(strategy: Strategy, processes: Processes) -> bool:
    """Return whether each process reads its part of the tensors of a checkpoint only."""
    engine = engine_type(strategy, processes, processes.size)
    return bool(processes.several and engine.reads_parts)
