"""The loss of the whole batch, as an algorithm."""

from collections.abc import Callable
from typing import Any

import attrs
from attrs.validators import optional

from composable._support.checks import check_is_callable
from composable.algorithms._validators import passes
from composable.batches.model_call import NamedOutputs
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State


@attrs.frozen(repr=False)
class WholeLoss(Algorithm):
    """Compute the loss of the whole batch: see `composable.functional.cached_gradients`.

    The loss and its gradients are computed from the outputs for all microbatches, batches of a
    step, shards and processes, for any loss, at the cost of one more forward pass. Where a batch is
    not split, nothing changes. It needs the Trainer: external loops have no second forward pass.

    Args:
        outputs: Returns those outputs of the model that the loss needs, given all of them: tensors
            with a row for each example, in any containers. The loss, metrics and predictions get
            what it returns. None for all outputs.
    """

    outputs: Callable[[Any], Any] | None = attrs.field(
        default=None, validator=optional(passes(check_is_callable))
    )

    events = frozenset({Event.INIT, Event.BEFORE_TRAIN_BATCH})
    stage = Stage.OTHER
    reads = frozenset({"model_call"})
    writes = frozenset({"model_call", "whole_loss"})

    def match(self, event: Event, state: State) -> bool:
        """Match before each batch; at `INIT` if there is a function of the outputs."""
        return event is Event.BEFORE_TRAIN_BATCH or self.outputs is not None

    def apply(self, event: Event, state: State) -> State:
        """Request the loss of the whole; at `INIT`, let the model return the named outputs."""
        if event is Event.INIT and self.outputs is not None:
            return state.evolve(model_call=NamedOutputs(state.model_call, self.outputs))
        return state.evolve(whole_loss=True)
