"""Label smoothing, as an algorithm."""

from functools import partial
from typing import Any

import attrs

from composable.algorithms._validators import in_range
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedTargets, smooth_labels
from composable.losses.classes import for_probabilities, refuse_regression

_ADVICE = (
    "pass nn.CrossEntropyLoss(...) itself as loss_fn, or smooth within the loss, such as by "
    "cross_entropy(..., label_smoothing=0.1)."
)


@attrs.frozen(repr=False)
class LabelSmoothing(Algorithm):
    """Smooth the targets: see `composable.functional.smooth_labels`.

    Targets are smoothed in training only. The loss must take class probabilities. Class weights,
    the reduction, `ignore_index` and `label_smoothing` of a cross entropy keep their meaning. Any
    other loss is compared once, for class indices and for the same classes as probabilities.

    Args:
        smoothing: Share of the probability that is spread over all classes, in [0, 1].
    """

    smoothing: float = attrs.field(default=0.1, validator=in_range(0, 1))

    events = frozenset({Event.BEFORE_LOSS})
    stage = Stage.TARGETS
    reads = frozenset({"batch", "outputs", "loss_fn"})
    writes = frozenset({"batch", "loss_fn"})

    def apply(self, event: Event, state: State) -> State:
        """Smooth the targets of the loss, of a mixed batch too."""
        targets = state.targets
        pair = isinstance(targets, MixedTargets)
        refuse_regression(state, targets.targets if pair else targets, self.name)
        loss_fn, targets, layout = for_probabilities(state, targets, _ADVICE)
        smooth: Any = partial(smooth_labels.unchecked, smoothing=self.smoothing, **layout._asdict())
        if pair:
            both = (smooth(targets.targets), smooth(targets.partner_targets))
            smoothed = MixedTargets(*both, targets.weight)
        else:
            smoothed = smooth(targets)
        batch = state.batch_spec.replace(state.batch, targets=smoothed)
        return state.evolve_unchecked(batch=batch, loss_fn=loss_fn)
