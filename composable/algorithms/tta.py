"""Test-time augmentation, as an algorithm."""

from typing import Any

import attrs
from torch import Tensor

from composable.algorithms._dense_targets import with_inputs
from composable.algorithms._validators import boolean, integer_at_least, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import average_tta, tta_views
from composable.losses.loss import OutputLoss

_BEFORE = frozenset({Event.EVAL_BEFORE_FORWARD, Event.PREDICT_BEFORE_FORWARD})
_AFTER = frozenset({Event.EVAL_AFTER_FORWARD, Event.PREDICT_AFTER_FORWARD})


@attrs.frozen(repr=False)
class TTA(Algorithm):
    """Evaluate and predict with test-time augmentation: see `composable.functional.tta`.

    Training does not change. The model must return logits, `[batch, classes]`; it sees all views of
    a batch at once.

    Args:
        flip: Add each view from right to left.
        shift: The shift along the diagonal in both directions, in pixels; 0 for none.
        average: "logits" or "probabilities": what is averaged.
    """

    flip: bool = attrs.field(default=True, validator=boolean)
    shift: int = attrs.field(default=1, validator=integer_at_least(0))
    average: str = attrs.field(default="logits", validator=one_of("logits", "probabilities"))

    events = _BEFORE | _AFTER
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "outputs", "loss_fn"})
    writes = frozenset({"batch", "outputs"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the images by their views, or the outputs for all views by their average."""
        views: Any = {"flip": self.flip, "shift": self.shift}
        if event in _BEFORE:
            if isinstance(state.loss_fn, OutputLoss):
                raise ValueError(
                    f"{self.name} averages logits alone, and {state.loss_fn.model} returns its "
                    "loss too; pass loss_fn=, a function of logits and targets, such as "
                    "cross_entropy."
                )
            return with_inputs(state, tta_views(state.inputs, **views))
        if not isinstance(state.outputs, Tensor):
            raise TypeError(
                f"{self.name} averages logits [batch, classes], and the model returns "
                f"{type(state.outputs).__name__}; use a model that returns the logits alone."
            )
        outputs = average_tta(state.outputs, average=self.average, **views)
        return with_inputs(state, state.inputs[: len(outputs)]).evolve(outputs=outputs)
