"""The hooks of an optimizer, which tell when an external loop steps, and whether it does."""

from contextlib import ExitStack
from typing import Any

import attrs
import torch
from torch.optim import Optimizer

from composable.integrations._step import StepEvents


def watch_steps(events: StepEvents, optimizer: Optimizer, *, before: bool = True) -> ExitStack:
    """Fire the events of a step when an optimizer steps, until the result is closed.

    A step that a `GradScaler` skips, since gradients overflowed, fires none of them. Otherwise the
    algorithms see unscaled gradients.

    Args:
        events: The events to fire.
        optimizer: The optimizer, without a wrapper.
        before: Whether to fire those before the step as well; without it, the loop does so.
    """
    hooks = _Hooks(events)
    watched = ExitStack()
    if before:
        watched.callback(optimizer.register_step_pre_hook(hooks.before).remove)
    watched.callback(optimizer.register_step_post_hook(hooks.after).remove)
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
