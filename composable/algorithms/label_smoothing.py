"""Label smoothing, as an algorithm."""

from functools import partial

import attrs

from composable.algorithms._validators import in_range
from composable.algorithms.mixup import classes_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedTargets, smooth_labels

__all__ = ["LabelSmoothing"]


@attrs.frozen(repr=False)
class LabelSmoothing(Algorithm):
    """Smooth the targets: see `composable.functional.smooth_labels`.

    Targets are smoothed in training only. The loss must take class probabilities.

    Args:
        smoothing: Share of the probability that is spread over all classes, in [0, 1].
    """

    smoothing: float = attrs.field(default=0.1, validator=in_range(0, 1))

    events = frozenset({Event.BEFORE_LOSS})
    stage = Stage.TARGETS
    reads = frozenset({"batch", "outputs"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Smooth the targets of the loss, including those of a mixed batch."""
        targets, classes = state.targets, classes_of(state.outputs)
        smooth = partial(smooth_labels, smoothing=self.smoothing, num_classes=classes)
        if isinstance(targets, MixedTargets):
            pair = (smooth(targets.targets), smooth(targets.partner_targets))
            return state.with_batch(targets=MixedTargets(*pair, targets.weight))
        return state.with_batch(targets=smooth(targets))
