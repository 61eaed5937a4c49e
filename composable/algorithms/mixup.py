"""MixUp, as an algorithm."""

import attrs

from composable.algorithms._pair_mixing import PairMixing
from composable.algorithms._validators import boolean, in_range
from composable.functional import mixup


@attrs.frozen(repr=False)
class MixUp(PairMixing):
    """Mix each batch with a permutation of itself: see `composable.functional.mixup`.

    The whole batch is mixed at once, before it is split into microbatches.

    Args:
        alpha: Both parameters of the Beta distribution of the weights, above 0.
        per_sample: Draw one weight per example instead of one per batch.
        interpolate_loss: Interpolate the losses of the two targets instead of the targets. This
            works for any loss, and computes it twice; interpolated targets need a loss that takes
            class probabilities, such as cross entropy.
    """

    alpha: float = attrs.field(default=0.2, validator=in_range(0, ends="()"))
    per_sample: bool = attrs.field(default=False, validator=boolean)
    interpolate_loss: bool = attrs.field(default=False, validator=boolean)

    mixing = staticmethod(mixup)
