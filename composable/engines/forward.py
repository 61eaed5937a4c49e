"""The forward pass: how a run computes outputs and losses."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.checks import LOW_PRECISION
from composable._support.notes import add_note
from composable._support.tree import map_tensors
from composable.batches.precision import Precision
from composable.core.state import State
from composable.losses.loss import ModelLoss, OutputLoss


@attrs.frozen(eq=False)
class ForwardPass:
    """How a run computes outputs and losses, in training, evaluation and prediction."""

    outputs: Callable[[State], Any] = State.forward
    """Calls the model on the batch of a state."""
    loss: Callable[[State, Any], Tensor] = State.compute_loss
    """Computes the loss of outputs and the batch of a state."""

    reads_with_graph: bool = False
    """Whether `read` computes a graph, too, since a compiled model has one for its training."""

    def read(self, state: State) -> Any:
        """Return outputs that are not differentiated."""
        with torch.set_grad_enabled(self.reads_with_graph):
            outputs = self.outputs(state)
        if not self.reads_with_graph:
            return outputs
        return map_tensors(lambda tensor: tensor.detach().clone(), outputs)

    def in_precision(self, precision: Precision, device: torch.device) -> "ForwardPass":
        """Return the forward pass in a precision."""
        if precision.weight_dtype is not None:
            return attrs.evolve(self, outputs=_with_cast_inputs(self.outputs, precision))
        if precision.autocast_dtype is None:
            return self

        def autocast(function: Callable[..., Any]) -> Callable[..., Any]:
            def computed(*args: Any) -> Any:
                with precision.autocast(device):
                    return function(*args)

            return computed

        return attrs.evolve(self, outputs=autocast(self.outputs), loss=autocast(self.loss))


def _with_cast_inputs(outputs: Callable[[State], Any], precision: Precision) -> Any:
    """Call a model with 16-bit weights.

    Its outputs are cast to float32 for a `loss_fn`, which would lose digits in 16 bits.
    """

    def cast_outputs(state: State) -> Any:
        result = outputs(state.evolve_unchecked(batch=precision.cast(state.batch)))
        own_loss = isinstance(state.loss_fn, (ModelLoss, OutputLoss))
        return result if own_loss else map_tensors(_to_float32, result)

    return cast_outputs


def explain_float16(error: Exception, state: State) -> None:
    """Add a note to an error that PyTorch may raise because the CPU computes in float16."""
    if state.device.type == "cpu" and state.precision.scales_loss and type(error) is RuntimeError:
        add_note(
            error,
            f"PyTorch does not implement every operation in float16 on the CPU, which "
            f"precision={state.precision.name!r} uses; with 'amp_bf16' it does.",
        )


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in LOW_PRECISION else tensor
