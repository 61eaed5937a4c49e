"""No-op model, as an algorithm."""

import attrs

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import no_op_model
from composable.losses.loss import ModelLoss


@attrs.frozen(repr=False)
class NoOpModel(Algorithm):
    """Train a model without any computation: see `composable.functional.no_op_model`.

    The outputs and the loss are the only parameter of the model. So metrics, and algorithms that
    read the outputs, don't apply. It runs after all other surgery.
    """

    events = frozenset({Event.INIT})
    stage = Stage.OTHER
    reads = frozenset({"model"})
    writes = frozenset({"model", "loss_fn"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the model and its loss once, before training."""
        model = no_op_model(state.model)
        return state.evolve(model=model, loss_fn=ModelLoss(model))
