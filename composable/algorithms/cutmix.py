"""CutMix, as an algorithm."""

import attrs

from composable.algorithms._pair_mixing import PairMixing
from composable.algorithms._validators import boolean, in_range
from composable.functional import cutmix


@attrs.frozen(repr=False)
class CutMix(PairMixing):
    """Paste a box of another example into each example: see `composable.functional.cutmix`.

    The whole batch is mixed at once, before it is split into microbatches.

    Args:
        alpha: Both parameters of the Beta distribution of the weight of an example, above 0.
        uniform_sampling: Make every pixel equally likely to be replaced.
        interpolate_loss: Interpolate the losses of the two targets instead of the targets. This
            works for any loss, and computes it twice; interpolated targets need a loss that takes
            class probabilities, such as cross entropy.
        per_sample: Draw one box per example instead of one per batch.
    """

    alpha: float = attrs.field(default=1.0, validator=in_range(0, ends="()"))
    uniform_sampling: bool = attrs.field(default=False, validator=boolean)
    interpolate_loss: bool = attrs.field(default=False, validator=boolean)
    per_sample: bool = attrs.field(default=False, validator=boolean)

    mixing = staticmethod(cutmix)
