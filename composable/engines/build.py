"""Find the engine of a strategy, and check that it has all methods."""

from pkgutil import resolve_name
from typing import Any

from composable.distributed.processes import Processes
from composable.distributed.strategies import Strategy
from composable.engines.engine import Engine


def engine_type(strategy: Strategy, processes: Processes, shards: int) -> Any:
    """Return the class of the engine of a run.

    Args:
        strategy: The strategy.
        processes: The processes of the run.
        shards: The number of shards.
    """
    return _loaded(strategy.engine_for(processes, shards))


def reads_parts(strategy: Strategy, processes: Processes) -> bool:
    """Return whether each process reads its part of the tensors of a checkpoint only."""
    engine = engine_type(strategy, processes, processes.size)
    return bool(processes.several and engine.reads_parts)


def check_engine(strategy: Strategy) -> Strategy:
    """Return a strategy whose engine has the methods of `Engine`.

    Raises:
        TypeError: It lacks one.
    """
    engine = _loaded(strategy.engine)
    if missing := [name for name in _METHODS if not hasattr(engine, name)]:
        raise TypeError(
            f"parallel={strategy!r} has the engine {getattr(engine, '__name__', engine)}, which "
            f"lacks {', '.join(missing)}; derive it from composable.engines.engine.Engine or "
            "another engine."
        )
    return strategy


def _loaded(engine: Any) -> Any:
    return resolve_name(engine) if isinstance(engine, str) else engine


_METHODS = [name for name in vars(Engine) if not name.startswith("_")]
