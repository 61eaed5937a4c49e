"""The losses of the examples of a batch, by which algorithms select."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from composable._support.generators import preserving_generators
from composable.core.state import State


def example_losses(
    state: State, module: nn.Module, tensors: Mapping[str, Tensor], name: str
) -> Tensor:
    """Compute the loss of each example of the batch, without side effects.

    Args:
        state: The state with the batch.
        module: The module that is called in place of the model.
        tensors: Parameters and buffers by name, in place of the module's; buffers may change.
        name: The algorithm, on which the random numbers depend.
    """

    def model(*args: Any, **kwargs: Any) -> Any:
        return functional_call(module, dict(tensors), args, kwargs)

    # A separate stream: scores must not depend on earlier draws.
    with preserving_generators([state.device]) as seed:
        seed(state.key.fold(name, "score", state.timestamp.batch).seed)
        with state.precision.autocast(state.device):
            outputs = state.model_call(model, state.precision.cast(state.batch), state.batch_spec)
            losses: Tensor = state.loss_fn.per_example(outputs, state.batch)  # type: ignore[union-attr]
            return losses
