"""Optimizer steps and cleared gradients, without the ranges that PyTorch records for profilers."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as _module

from composable.core.state import State

_ZERO_GRAD = Optimizer.zero_grad

_profiler_enabled: Callable[[], bool] = getattr(
    torch._C._autograd, "_profiler_enabled", lambda: True
)


class OptimizerSteps:
    """Step the optimizers of a state, each by its `fast_step`, which is made once.

    Example:
        >>> from composable import State
        >>> from composable.optim.stepping import OptimizerSteps
        >>> weight = torch.ones(1, requires_grad=True)
        >>> weight.grad = torch.ones(1)
        >>> step, optimizer = OptimizerSteps(), torch.optim.SGD([weight], lr=0.5)
        >>> _ = step(State(torch.nn.Identity(), optimizers=(optimizer,)))
        >>> weight.item()
        0.5
    """

    __slots__ = ("_optimizers", "_steps")

    def __init__(self) -> None:
        self._optimizers: tuple[Optimizer, ...] = ()
        self._steps: tuple[Callable[[], Any], ...] = ()

    def __call__(self, state: State) -> State:
        """Call `step()` of each optimizer, and return the state."""
        optimizers = state.optimizers
        if optimizers is not self._optimizers:
            self._optimizers, self._steps = optimizers, tuple(map(fast_step, optimizers))
        for step in self._steps:
            step()
        return state


def zero_grad(state: State) -> State:
    """Set the gradients to None, and return the state."""
    for optimizer in state.optimizers:
        if getattr(optimizer.zero_grad, "__func__", None) is not _ZERO_GRAD:
            optimizer.zero_grad()
            continue
        # torch's own, without its profiler range: the range costs more than the rest of a step.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    return state


def count_skipped_step(optimizers: Iterable[Optimizer]) -> None:
    """Tell torch schedulers that a step was skipped; they warn if no step came before theirs."""
    for optimizer in optimizers:
        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            optimizer._opt_called = True  # type: ignore[attr-defined]


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether the step of an optimizer computes gradients again, by a closure, as LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def restoring(optimizer: Optimizer, *, weights: bool = False) -> Callable[[], None]:
    """Return a function that restores the state and the groups of an optimizer, once.

    Args:
        optimizer: The optimizer.
        weights: Whether its parameters are copied and restored, too.
    """
    held = [p for group in optimizer.param_groups for p in group["params"] if weights]
    copies = [(p.detach(), p.detach().clone()) for p in held]
    states = {p: copy.deepcopy(values) for p, values in optimizer.state.items()}
    groups = [(group, _copied(group)) for group in optimizer.param_groups]

    def restore() -> None:
        for tensor, copied in copies:
            tensor.copy_(copied)
        for p in [p for p in optimizer.state if p not in states]:
            del optimizer.state[p]
        optimizer.state.update(states)
        for group, values in groups:
            for name in group.keys() - values.keys():
                del group[name]
            for name, value in values.items():
                if isinstance(value, Tensor):  # a compiled step may hold it
                    group[name].copy_(value)
                else:
                    group[name] = value

    return restore


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items()
    }


def fast_step(optimizer: Optimizer) -> Callable[[], Any]:
    """Return a function that does what `optimizer.step()` does, in less time.

    On the way to the arithmetic, `Optimizer.step` calls hooks and records a range for the profiler,
    which takes a tenth of a small training step. Without hooks and without a profiler, the range
    has no effect, and the function calls the arithmetic directly. In every other case (hooks, a
    profiler, a `step` that was replaced or wrapped) it calls `optimizer.step()`. It decides at
    each call, since hooks may be registered at any time.
    """
    kind, own = type(optimizer), vars(optimizer).get("step")
    whole: Any = kind.step
    bare = getattr(whole, "__wrapped__", None) if getattr(whole, "hooked", False) else None
    # A torch scheduler wraps the step, to note that there was one.
    counted = hasattr(own, "_wrapped_by_lr_sched") and getattr(own, "__wrapped__", None) is whole
    code = getattr(Optimizer, "_optimizer_step_code", None)
    plain = code is not None and getattr(kind, "_optimizer_step_code", None) is code
    global_hooks = [
        getattr(_module, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post")
    ]
    if bare is None or not plain or None in global_hooks or not (own is None or counted):
        return lambda: optimizer.step()
    before_any, after_any = global_hooks
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    fields = vars(optimizer)

    def step() -> None:
        if (
            before
            or after
            or before_any
            or after_any
            or _profiler_enabled()
            or fields.get("step") is not own
            or kind.step is not whole
        ):
            optimizer.step()
            return
        if counted:
            fields["_opt_called"] = True
        bare(optimizer)

    return step
