"""The laws and the matrix of properties, for anyone's algorithm and anyone's function.

`check_algorithm` and `check_function` need nothing but PyTorch. The strategies (`batches`,
`models`, `states`, ...) are for Hypothesis, which the extra `testing` installs.
"""

from typing import TYPE_CHECKING, Any

from composable.testing.algorithms import AlgorithmReport, LawBroken, check_algorithm
from composable.testing.functions import Answer, FunctionReport, PropertyBroken, check_function
from composable.testing.no_sync import HostSyncError, NoSync

if TYPE_CHECKING:
    from composable.testing.strategies import (
        algorithm_sets,
        batches,
        events,
        models,
        register_torch,
        seeds,
        states,
        token_batches,
    )

__all__ = [
    "AlgorithmReport",
    "Answer",
    "FunctionReport",
    "HostSyncError",
    "LawBroken",
    "NoSync",
    "PropertyBroken",
    "algorithm_sets",
    "batches",
    "check_algorithm",
    "check_function",
    "events",
    "models",
    "register_torch",
    "seeds",
    "states",
    "token_batches",
]

_STRATEGIES = (
    "algorithm_sets",
    "batches",
    "events",
    "models",
    "register_torch",
    "seeds",
    "states",
    "token_batches",
)


def __getattr__(name: str) -> Any:
    """A strategy, imported when it is asked for: whoever only checks needs no Hypothesis."""
    if name not in _STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from composable.testing import strategies

    return getattr(strategies, name)
