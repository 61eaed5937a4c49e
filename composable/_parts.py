"""What our loop and other people's have in common."""

from collections.abc import Callable

from torch import nn

from composable.core.event import Event
from composable.core.state import State
from composable.evaluation import bind_loss
from composable.optim.building import repoint_optimizers


def surgery(fire: Callable[[Event, State], State], event: Event, state: State) -> State:
    """Fire an event at which models are replaced; the optimizers and the loss follow."""
    before = state.model
    state = fire(event, state)
    if state.model is before:
        return state
    repoint_optimizers(state.optimizers, before, state.model)
    return bind_loss(state)


def write_gradients(state: State) -> None:
    """Give the parameters the gradients that an algorithm made of theirs."""
    gradients = state.gradients or {}
    for name, parameter in state.model.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name]


def freeze(state: State) -> list[nn.Parameter]:
    """Let the parameters in `state.frozen` require no gradient, and return those that did.

    Without a gradient an optimizer passes a parameter over: momentum and weight decay included.

    Raises:
        ValueError: The model has no parameter of that name.
    """
    named = dict(state.model.named_parameters())
    if unknown := sorted(state.frozen - named.keys()):
        raise ValueError(
            f"state.frozen has {unknown[:5]}, and the model has no such parameters: an algorithm "
            "wrote it, and must use the names of state.model.named_parameters()."
        )
    chosen = [named[name] for name in state.frozen if named[name].requires_grad]
    for parameter in chosen:
        parameter.requires_grad_(False)
        parameter.grad = None  # a loop may have left zeros there
    return chosen


def thaw(parameters: list[nn.Parameter]) -> None:
    """Let parameters require gradients again."""
    for parameter in parameters:
        parameter.requires_grad_(True)


def between_batches(state: State) -> State:
    """The state without the batch: between two of them, a saved run and one that goes on agree."""
    return state if state.batch is None else state.evolve(batch=None, outputs=None)
