"""What our loop and other people's have in common."""

from collections.abc import Callable

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


def between_batches(state: State) -> State:
    """The state without the batch: between two of them, a saved run and one that goes on agree."""
    return state if state.batch is None else state.evolve(batch=None, outputs=None)
