"""What our loop and other people's have in common."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from composable.core.event import Event
from composable.core.state import State
from composable.optim.building import update_param_groups
from composable.trainer.evaluation import bind_loss


def surgery(fire: Callable[[Event, State], State], event: Event, state: State) -> State:
    """Fire an event at which models are replaced; the optimizers and the loss follow."""
    before = state.model
    state = fire(event, state)
    if state.model is before:
        return state
    update_param_groups(state.optimizers, before, state.model)
    return bind_loss(state)


def write_gradients(state: State) -> None:
    """Give the parameters the gradients that an algorithm made of theirs."""
    gradients = state.gradients or {}
    for name, parameter in state.model.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name]


def freeze(state: State) -> list[Callable[[], object]]:
    """Let the parameters in `state.frozen` require no gradient, and return what undoes that.

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
    undo: list[Callable[[], object]] = []
    for parameter in [named[name] for name in state.frozen if named[name].requires_grad]:
        parameter.requires_grad_(False)
        parameter.grad = None  # a loop may have left zeros there
        undo.append(partial(parameter.requires_grad_, True))
    for module in state.model.modules():
        if isinstance(module, nn.GroupNorm) and module.affine:
            undo.append(module.register_forward_pre_hook(_ask_for_a_gradient).remove)
    return undo


def thaw(undo: list[Callable[[], object]]) -> None:
    """Undo what `freeze` did, once."""
    while undo:
        undo.pop()()


def _ask_for_a_gradient(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Let an input of a group norm require a gradient where it is channels-last and on the CPU.

    Else the backward pass of its weight ends the process, as of torch 2.13.
    """
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or x.requires_grad or x.is_contiguous() or not x.is_cpu:
        return None
    return (x.detach().requires_grad_(torch.is_grad_enabled()), *inputs[1:])


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
