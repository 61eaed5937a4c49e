"""Test your own algorithms and functions: laws, properties and Hypothesis strategies.

`check_algorithm` and `check_function` require only PyTorch. The strategies (`batches`, `models`,
`states`, ...) require Hypothesis, which the extra `testing` installs.
"""

from typing import TYPE_CHECKING, Any

from composable.testing.algorithms import AlgorithmReport, LawViolation, check_algorithm
from composable.testing.functions import Answer, FunctionReport, PropertyViolation, check_function
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
    "LawViolation",
    "NoSync",
    "PropertyViolation",
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
    """Import a strategy at its first use, so that the checks do not require Hypothesis."""
    if name not in _STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from composable.testing import strategies

    return getattr(strategies, name)
