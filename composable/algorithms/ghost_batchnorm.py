"""Ghost batch norm, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import integer_at_least
from composable.functional import ghost_batchnorm

__all__ = ["GhostBatchNorm"]


@attrs.frozen(repr=False)
class GhostBatchNorm(Surgery):
    """Normalize slices of the batch: see `composable.functional.ghost_batchnorm`.

    Args:
        ghost_batch_size: Number of examples in a slice, 1 or more. Each microbatch is sliced
            separately.
    """

    ghost_batch_size: int = attrs.field(default=32, validator=integer_at_least(1))

    surgery = staticmethod(ghost_batchnorm)
    replaces = frozenset({"batch norm"})
