"""Low-precision group norm, as an algorithm."""

import attrs

from composable.algorithms._low_precision import LowPrecisionNorm
from composable.functional import low_precision_groupnorm


@attrs.frozen(repr=False)
class LowPrecisionGroupNorm(LowPrecisionNorm):
    """Compute group norms in low precision: see `composable.functional.low_precision_groupnorm`.

    Args:
        precision: `torch.float16` or `torch.bfloat16`. None for the dtype of autocast.

    Warns:
        NoEffectWarning: The precision is None, and there is no autocast in the first training step.
    """

    surgery = staticmethod(low_precision_groupnorm)
    replaces = frozenset({"group norm"})
