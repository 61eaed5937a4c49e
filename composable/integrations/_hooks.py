"""The hooks of an optimizer, which tell when an external loop steps, and whether it does."""

from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary, ref

import attrs
import torch
from torch.optim import Optimizer

from composable.integrations._refusals import names_acting_in_training
from composable.integrations._step import StepEvents

_OWNERS: WeakKeyDictionary[Optimizer, ref[StepEvents]] = WeakKeyDictionary()
"""The last adapter that was given an optimizer."""


def own_optimizers(events: StepEvents) -> None:
    """Let the optimizers of an adapter step only while `watch_steps` watches them."""
    for optimizer in events.state.optimizers:
        if optimizer not in _OWNERS:
            optimizer.register_step_pre_hook(_refuse_unwatched)
        _OWNERS[optimizer] = ref(events)


def check_owner(events: StepEvents) -> None:
    """Raise a RuntimeError if an optimizer of an adapter was given to another one since."""
    for optimizer in events.state.optimizers:
        owner = _OWNERS.get(optimizer)  # None for one that an algorithm has put in its place
        if owner is not None and owner() is not events:
            raise RuntimeError(
                f"t.epoch(loader): the {type(optimizer).__name__} of t was passed to another "
                "adapt_loop (or t.follow) since, and the algorithms of both would act in its "
                "steps; pass one set of algorithms, or give each adapter an optimizer of its own."
            )


def _refuse_unwatched(optimizer: Any, *_: Any) -> None:
    owner = _OWNERS[optimizer]()
    if owner is None or owner.watching:
        return
    names = names_acting_in_training(owner.plan)
    # torch.distributed.checkpoint initializes the state of an optimizer by a step of length 0.
    if names and any(group.get("lr", 1) != 0 for group in optimizer.param_groups):
        raise RuntimeError(
            f"optimizer.step() was called outside of t.epoch(loader), where {names} would do "
            "nothing; iterate over t.epoch(loader). If two adapters train on one loader, pass one "
            "to the other: t.epoch(loader, others=[u])."
        )


def watch_steps(events: StepEvents, *, before: bool = True) -> ExitStack:
    """Fire the events of a step when the optimizer steps, until the result is closed.

    A step that a `GradScaler` skips, since gradients overflowed, fires none of them. Otherwise the
    algorithms see unscaled gradients.

    Args:
        events: The events to fire.
        before: Whether to fire those before the step as well; without it, the loop does so.
    """
    hooks = _Hooks(events)
    watched = ExitStack()
    for optimizer in events.state.optimizers:
        if before:
            watched.callback(optimizer.register_step_pre_hook(hooks.before).remove)
        watched.callback(optimizer.register_step_post_hook(hooks.after).remove)
    events.watching = True
    watched.callback(setattr, events, "watching", False)
    return watched


@attrs.define(eq=False)
class _Hooks:
    events: StepEvents
    skips: bool = False
    """Whether the optimizer will leave the weights as they are."""

    def before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
            raise TypeError(
                "optimizer.step(closure) computes the gradients inside the step, where algorithms "
                "cannot change them; call loss.backward() before optimizer.step()."
            )
        self.skips = _overflowed(optimizer)
        if not self.skips:
            _unscale(optimizer)
            self.events.before_step()

    def after(self, *_: Any) -> None:
        if not self.skips:
            self.events.after_step()


def _overflowed(optimizer: Any) -> bool:
    """Return whether a fused optimizer will skip its step, as a `GradScaler` has requested."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _unscale(optimizer: Any) -> None:
    """Unscale gradients that a `GradScaler` leaves to a fused optimizer."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    torch._foreach_mul_(gradients, scale.double().reciprocal().float())
    optimizer.grad_scale = None  # the optimizer would divide by it again
