"""CutMix, as an algorithm."""

import attrs

from composable.algorithms._validators import flag, number
from composable.algorithms.mixup import blend_pairs
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import cutmix

__all__ = ["CutMix"]


@attrs.frozen(repr=False)
class CutMix(Algorithm):
    """Paste a box of another example into each: see `composable.functional.cutmix`.

    The whole batch is mixed at once, before it is split into microbatches.

    Args:
        alpha: Both parameters of the Beta distribution of the share that is kept, above 0.
        uniform_sampling: Make every pixel equally likely to be replaced.
        interpolate_loss: Blend the losses of the two targets instead of the targets. That works
            for any loss, and computes it twice; blended targets need a loss that takes class
            probabilities, such as cross entropy.
        per_sample: Draw a box for every example instead of one for the batch.
    """

    alpha: float = attrs.field(default=1.0, validator=number(0, ends="()"))
    uniform_sampling: bool = attrs.field(default=False, validator=flag)
    interpolate_loss: bool = attrs.field(default=False, validator=flag)
    per_sample: bool = attrs.field(default=False, validator=flag)

    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.BEFORE_LOSS})
    stage = Stage.MIX
    reads = frozenset({"batch", "outputs", "loss_fn", "key", "timestamp"})
    writes = frozenset({"batch", "loss_fn"})

    def apply(self, event: Event, state: State) -> State:
        """Mix the batch; then turn its pairs of targets into what the loss takes."""
        if event is Event.BEFORE_LOSS:
            return blend_pairs(state, interpolate_loss=self.interpolate_loss)
        mixed = cutmix(
            state.inputs,
            state.targets,
            alpha=self.alpha,
            uniform_sampling=self.uniform_sampling,
            per_sample=self.per_sample,
            generator=state.generator(self.name),
        )
        return state.with_batch(inputs=mixed.inputs, targets=mixed.mixed_targets)
