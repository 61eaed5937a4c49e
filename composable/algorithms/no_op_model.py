"""A model that costs nothing, as an algorithm."""

import attrs

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.loss import ModelLoss
from composable.core.state import State
from composable.functional import no_op_model

__all__ = ["NoOpModel"]


@attrs.frozen(repr=False)
class NoOpModel(Algorithm):
    """Train a model that costs nothing: see `composable.functional.no_op_model`.

    The loss is the model's only parameter. Metrics, and algorithms that look at what the model
    made of the inputs, have nothing to look at. It comes after all other surgery.
    """

    events = frozenset({Event.INIT})
    stage = Stage.OTHER
    reads = frozenset({"model"})
    writes = frozenset({"model", "loss_fn"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the model and its loss once, before training."""
        model = no_op_model(state.model)
        return state.evolve(model=model, loss_fn=ModelLoss(model))
