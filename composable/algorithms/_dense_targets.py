"""Targets with a value for each pixel: moved with the images, or refused."""

from collections.abc import Callable

from torch import Tensor

from composable._support.spatial import is_dense
from composable._support.tree import map_tensors, tensors_of
from composable.core.state import State
from composable.functional import ResizedBatch


def check_no_dense_targets(state: State, problem: str, fix: str) -> None:
    """Raise an error if a target of the batch has a value for each pixel of the inputs.

    Args:
        state: The state, whose batch may be without targets.
        problem: What the method can't do with such targets.
        fix: What to do instead.

    Raises:
        ValueError: There is such a target.
    """
    inputs = state.inputs
    if not isinstance(inputs, Tensor) or inputs.ndim < 3:
        return
    for tensor in tensors_of(state.batch_spec.targets_or_none(state.batch)):
        if is_dense(tensor, inputs.shape[2:]):
            raise ValueError(
                f"{problem} targets {tuple(tensor.shape)} that have a value for each pixel; {fix}."
            )


def with_inputs(state: State, inputs: Tensor) -> State:
    """Replace the inputs of the batch, which may be all of it, as in a prediction."""
    if state.batch is state.inputs:
        return state.evolve(batch=inputs)
    return state.with_batch(inputs=inputs)


def with_resized(state: State, small: Tensor | ResizedBatch) -> State:
    """Replace the inputs of the batch, and the targets if they were given with them."""
    return state.with_batch(**({"inputs": small} if isinstance(small, Tensor) else small._asdict()))


def move_pixels(state: State, move: Callable[[Tensor], Tensor]) -> State:
    """Apply a function to the images of the batch, and to targets with a value for each pixel."""
    images, targets = state.inputs, state.targets
    parts = {"inputs": move(images)}
    size = images.shape[2:]
    if any(is_dense(tensor, size) for tensor in tensors_of(targets)):
        parts["targets"] = map_tensors(
            lambda one: move(one) if is_dense(one, size) else one, targets
        )
    return state.with_batch(**parts)
