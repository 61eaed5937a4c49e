"""CutMix, as an algorithm."""

import attrs

from composable.algorithms._validators import boolean, fields_for, in_range
from composable.algorithms.mixup import blend_pairs
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import cutmix

__all__ = ["CutMix"]


@attrs.frozen(repr=False)
class CutMix(Algorithm):
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

    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.BEFORE_LOSS})
    stage = Stage.MIX
    reads = frozenset({"batch", "outputs", "loss_fn", "key", "timestamp"})
    writes = frozenset({"batch", "loss_fn"})

    def apply(self, event: Event, state: State) -> State:
        """Mix the batch; before the loss, interpolate its pairs of targets, or the loss."""
        if event is Event.BEFORE_LOSS:
            return blend_pairs(state, interpolate_loss=self.interpolate_loss)
        options = fields_for(self, cutmix)
        mixed = cutmix(state.inputs, state.targets, **options, generator=state.generator(self.name))
        return state.with_batch(inputs=mixed.inputs, targets=mixed.mixed_targets)
