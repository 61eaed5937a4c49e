"""What algorithms share that evaluate with an average of the weights."""

from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import with_tensors

__all__ = ["WeightAverage"]


@attrs.frozen(repr=False)
class WeightAverage(Algorithm):
    """Evaluate and predict with an average of the weights, and train with the weights themselves.

    `state.averages[name]` holds the average, by the names of parameters and buffers, in float32 for
    16-bit weights. A subclass updates it, and adds the events of its updates to `EVALUATES`.
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

    @staticmethod
    def weights_of(state: State) -> dict[str, Tensor]:
        """Return the parameters and buffers of the model, by name."""
        return {**dict(state.model.named_parameters()), **dict(state.model.named_buffers())}

    @classmethod
    def first_average(cls, state: State) -> dict[str, Tensor]:
        """Copy the weights, 16-bit ones to float32: their average would stall within rounding."""
        return {name: _precise_copy(tensor) for name, tensor in cls.weights_of(state).items()}


def _precise_copy(tensor: Tensor) -> Tensor:
    short = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.detach().to(torch.float32 if short else tensor.dtype, copy=True)
