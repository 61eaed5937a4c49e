"""What algorithms share that evaluate with an average of the weights."""

from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import with_tensors


@attrs.frozen(repr=False)
class WeightAverage(Algorithm):
    """Evaluate and predict with an average of the weights, and train with the weights themselves.

    `state.averages[name]` holds the average, by the names of parameters and buffers, in float32 for
    16-bit weights. Frozen parameters, such as the base weights under adapters, are not averaged. A
    parameter that is unfrozen later joins with its value at that time, and one that is frozen later
    stays. A subclass updates it, and adds the events of its updates to `EVALUATES`.
    """

    EVALUATES = frozenset({Event.EVAL_START, Event.PREDICT_START})
    """The events at which the model is replaced, once there is an average."""

    stage = Stage.AVERAGE

    def averaged_model(self, state: State) -> Any:
        """Return a copy of the model with the averaged weights, in the dtypes of the model.

        Raises:
            KeyError: There is no average yet.
        """
        return with_tensors(state.model, state.averages[self.name])

    def evaluate(self, state: State) -> State:
        """Return the state with the averaged weights."""
        return state.evolve(model=self.averaged_model(state))

    def weights_of(self, state: State) -> dict[str, Tensor]:
        """Return the parameters that are trained or averaged already, and the buffers, by name."""
        averaged = state.averages.get(self.name, ())
        parameters = state.model.named_parameters()
        trained = {name: p for name, p in parameters if p.requires_grad or name in averaged}
        return {**trained, **dict(state.model.named_buffers())}

    def average_of(self, state: State) -> dict[str, Tensor]:
        """Return the average so far; weights that are new in it have their current values.

        16-bit weights are copied to float32: their average would stall within rounding.
        """
        averaged = state.averages.get(self.name, {})
        return {
            name: averaged[name] if name in averaged else _precise_copy(tensor)
            for name, tensor in self.weights_of(state).items()
        }


def _precise_copy(tensor: Tensor) -> Tensor:
    short = tensor.is_floating_point() and 1 < tensor.element_size() < 4
    return tensor.detach().to(torch.float32 if short else tensor.dtype, copy=True)
