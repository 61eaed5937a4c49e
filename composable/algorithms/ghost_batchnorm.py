"""Ghost batch norm, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import ghost_batchnorm


@attrs.frozen(repr=False)
class GhostBatchNorm(Surgery):
    """Normalize slices of the batch: see `composable.functional.ghost_batchnorm`.

    Args:
        ghost_batch_size: Number of examples in a slice, 1 or more. Each microbatch is sliced
            separately.
    """

    ghost_batch_size: int = 32

    surgery = staticmethod(ghost_batchnorm)
    replaces = frozenset({"batch norm"})
