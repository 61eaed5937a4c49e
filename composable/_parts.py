"""What our loop and other people's have in common."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

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


@contextmanager
def at_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Let parameters of a model have other values for a while; then the same bits come back.

    Raises:
        ValueError: A name is that of no parameter.
    """
    held = dict(model.named_parameters())
    if strange := sorted(weights.keys() - held.keys()):
        raise ValueError(
            f"state.second_pass gave weights for {strange}, which are no parameters of the model: "
            "give them by the names of model.named_parameters()."
        )
    own = [held[name].detach() for name in weights]
    kept = [parameter.clone() for parameter in own]
    try:
        _copy(weights.values(), own)
        del weights
        yield
    finally:
        _copy(kept, own)


def _copy(values: Iterable[Tensor], parameters: list[Tensor]) -> None:
    if parameters:  # torch refuses to copy nothing
        torch._foreach_copy_(parameters, list(values))
