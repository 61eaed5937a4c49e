"""The model and its parameters around a step: surgery, gradients, temporary changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.dtensors import local_part
from composable.core.algorithm import Algorithm
from composable.core.event import Event
from composable.core.state import State
from composable.engines.modules import bind_loss
from composable.optim.building import update_param_groups
from composable.optim.multi import schedule_free_parts


def surgery(fire: Callable[[Event, State], State], event: Event, state: State) -> State:
    """Fire an event that may replace the model, and update the optimizers and the loss."""
    before = state.model
    state = fire(event, state)
    if state.model is before:
        return state
    _move_built(state.model, before, state.device)
    update_param_groups(state.optimizers, before, state.model)
    return bind_loss(state)


def _move_built(model: nn.Module, before: nn.Module, device: torch.device) -> None:
    """Move the tensors that a surgery has built to the device of the run, in place."""
    known = {id(tensor) for tensor in (*before.parameters(), *before.buffers())}
    tensors = (*model.parameters(), *model.buffers())
    built = {id(one): one for one in tensors if id(one) not in known and not one.is_meta}
    device = torch.empty(0, device=device).device  # with its index
    if any(one.device != device for one in built.values()):
        model._apply(lambda one: one.to(device) if id(one) in built else one)  # type: ignore[no-untyped-call]


def is_surgery(algorithm: Algorithm) -> bool:
    """Return whether an algorithm declares that it replaces the model or the optimizers."""
    return not {"model", "optimizers"}.isdisjoint(algorithm.writes)


def start_training(state: State) -> None:
    """Switch the model, the module that computes the loss, and the optimizers to training mode.

    A module in training mode is left as it is: parts in evaluation mode stay so.
    """
    for optimizer in schedule_free_parts(state.optimizers):
        optimizer.train()
    for module in state.modules.values():
        if not module.training:
            module.train()


def drop_batch(state: State) -> State:
    """Clear the batch and the outputs: checkpoints do not store them."""
    return state if state.batch is None else state.evolve_unchecked(batch=None, outputs=None)


@contextmanager
def frozen_parameters(state: State) -> Iterator[None]:
    """Set `requires_grad=False` on the parameters in `state.frozen`, and restore it afterwards.

    An optimizer skips a parameter without a gradient, momentum and weight decay included.

    Raises:
        ValueError: The model has no parameter of that name.
    """
    named = dict(state.model.named_parameters())
    if unknown := sorted(state.frozen - named.keys()):
        raise ValueError(
            f"state.frozen has the names {unknown[:5]}, which are not parameters of the model; use "
            "names of state.model.named_parameters()."
        )
    with ExitStack() as undo:
        for parameter in [named[name] for name in state.frozen if named[name].requires_grad]:
            parameter.requires_grad_(False)
            parameter.grad = None  # an external loop may have left zeros there
            undo.callback(parameter.requires_grad_, True)
        for module in state.model.modules():
            if isinstance(module, nn.GroupNorm) and module.affine:
                undo.callback(module.register_forward_pre_hook(_require_input_grad).remove)
        yield


def _require_input_grad(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Let a channels-last CPU input of a group norm require a gradient.

    Otherwise the backward pass of the norm's weight aborts the process, as of torch 2.13.
    """
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or x.requires_grad or x.is_contiguous() or not x.is_cpu:
        return None
    return (x.detach().requires_grad_(torch.is_grad_enabled()), *inputs[1:])


@contextmanager
def temporary_weights(
    held: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]
) -> Iterator[None]:
    """Set parameters to `weights`, and restore their bits afterwards.

    Args:
        held: The parameters by name.
        weights: The values of some of them.

    Raises:
        ValueError: A name belongs to no parameter.
    """
    if unknown := sorted(weights.keys() - held.keys()):
        raise ValueError(
            f"state.second_pass returned weights for {unknown}, which are not parameters of the "
            "model or the loss; use names of state.named_parameters()."
        )
    own = [held[name].detach() for name in weights]
    saved = [parameter.clone() for parameter in own]
    try:
        _copy(weights.values(), own)
        del weights
        yield
    finally:
        _copy(saved, own)


def _copy(values: Iterable[Tensor], parameters: list[Tensor]) -> None:
    if parameters:  # torch raises on empty lists
        own, new = map(local_part, parameters), map(local_part, values)
        torch._foreach_copy_(list(own), list(new))
