"""Test your own algorithms and functions: laws, properties and Hypothesis strategies.

`check_algorithm` and `check_function` require only PyTorch. The strategies (`batches`, `models`,
...) require Hypothesis, which the extra `testing` installs.
"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.testing import strategies as strategies
    from composable.testing.algorithms import AlgorithmReport as AlgorithmReport
    from composable.testing.algorithms import LawViolation as LawViolation
    from composable.testing.algorithms import check_algorithm as check_algorithm
    from composable.testing.functions import Answer as Answer
    from composable.testing.functions import FunctionReport as FunctionReport
    from composable.testing.functions import PropertyViolation as PropertyViolation
    from composable.testing.functions import check_function as check_function
    from composable.testing.no_sync import HostSyncError as HostSyncError
    from composable.testing.no_sync import NoSync as NoSync
    from composable.testing.strategies import batches as batches
    from composable.testing.strategies import events as events
    from composable.testing.strategies import models as models
    from composable.testing.strategies import register_torch as register_torch
    from composable.testing.strategies import seeds as seeds
else:
    export_lazily(__name__)
