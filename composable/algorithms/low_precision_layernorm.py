"""Low-precision layer norm, as an algorithm."""

import attrs

from composable.algorithms._low_precision import LowPrecisionNorm
from composable.functional import low_precision_layernorm


@attrs.frozen(repr=False)
class LowPrecisionLayerNorm(LowPrecisionNorm):
    """Compute layer and RMS norms in low precision: see `functional.low_precision_layernorm`.

    Args:
        precision: `torch.float16` or `torch.bfloat16`. None for the dtype of autocast.

    Warns:
        NoEffectWarning: The precision is None, and there is no autocast in the first training step.
    """

    surgery = staticmethod(low_precision_layernorm)
    replaces = frozenset({"layer norm"})
