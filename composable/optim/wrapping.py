"""What the optimizers of this library share, and wrappers of any optimizer.

A wrapper changes what precedes and follows each step, by hooks of PyTorch. The optimizer stays what
it is, with its parameter groups, its state and its class. So schedules, checkpoints, engines and
other libraries see the optimizer itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import attrs
import torch
from torch import Tensor
from torch.optim import Optimizer

from composable._support.checks import check_range
from composable._support.dtensors import local_part

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
Group = dict[str, Any]
State = dict[str, Any]
Tensors = list[Tensor]


@attrs.define(eq=False)
class StepWrapper:
    """A change before and after each step of an optimizer.

    It remembers nothing itself between steps: numbers are options of the parameter groups, and
    tensors are in the state of the optimizer, so that its state dict has both.
    """

    buffers: ClassVar[tuple[str, ...]] = ()
    """The names of its tensors in the state of each parameter: zeros before the first step."""
    _before: dict[Tensor, Tensor] = attrs.field(factory=dict, init=False)
    _loaded: Mapping[str, Any] = attrs.field(factory=dict, init=False)

    def prepare(self, group: Group) -> None:
        """Change the options of a group before a step."""

    def changes(self, group: Group) -> bool:
        """Return whether it changes the weights of a group after this step."""
        return True

    def update(self, group: Group, before: Tensors, after: Tensors, states: list[State]) -> Tensors:
        """Return the new weights, from those before and after a step, which it may overwrite.

        Args:
            group: The group.
            before: The weights before the step, of the parameters with a gradient.
            after: Those after the step.
            states: The state of the optimizer for each of these parameters.
        """
        raise NotImplementedError

    @torch.no_grad()
    def enter(self, optimizer: Optimizer, *_: Any) -> None:
        """Prepare a step: the hook before it. The closure, if there is one, was not called yet."""
        self._before = {}
        for group in optimizer.param_groups:
            self.prepare(group)
            if self.changes(group):
                trained = (p for p in group["params"] if p.requires_grad)
                self._before |= {p: local_values(p).clone() for p in trained}

    @torch.no_grad()
    def leave(self, optimizer: Optimizer, *_: Any) -> None:
        """Update the weights: the hook after a step."""
        held, self._before = self._before, {}
        for group in optimizer.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None and p in held]
            if not stepped:
                continue
            after = [local_values(p) for p in stepped]
            states = [self._started(p, optimizer.state[p]) for p in stepped]
            new = self.update(group, [held.pop(p) for p in stepped], after, states)
            for own, value in zip(after, new, strict=True):
                if value is not own:
                    own.copy_(value)

    def note(self, _: Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Note what is loaded: the hook before it."""
        self._loaded = state_dict

    def restore(self, optimizer: Optimizer) -> None:
        """Restore the dtypes of the buffers: the hook after it."""
        loaded, self._loaded = self._loaded, {}
        restore_dtypes(optimizer, loaded)

    def _started(self, parameter: Tensor, state: State) -> State:
        """Return the state of a parameter with its buffers, in float32 for 16-bit weights."""
        for name in self.buffers:
            if name not in state:
                dtype = torch.float32 if parameter.element_size() < 4 else parameter.dtype
                state[name] = torch.zeros_like(parameter, dtype=dtype)
        return state


class BaseOptimizer(Optimizer):
    """An optimizer of this library, which steps one group of parameters after another."""

    own_dtypes: ClassVar[tuple[str, ...]] = ()
    """The names of its states that are not in the dtype of their parameters."""
    takes_sparse: ClassVar[bool] = False
    """Whether gradients may be sparse."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Raises:
            ValueError: An option is out of range.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group={param_group!r} must be a dictionary with 'params'.")
        super().add_param_group(self.complete(param_group))

    def complete(self, group: Group) -> Group:
        """Return a new group with separate options, and check these."""
        return group

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient.

        Args:
            closure: A function that computes the loss and the gradients again, and returns the
                loss.

        Returns:
            The loss, or None.

        Raises:
            RuntimeError: The optimizer does not support a gradient.
        """
        loss = loss_of(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not self.takes_sparse and any(p.grad.is_sparse for p in params):
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients: use "
                    "Embedding(sparse=False)."
                )
            self.step_group(params, group)
        return loss

    def step_group(self, params: Tensors, group: Group) -> None:
        """Update the parameters of a group that have a gradient, possibly none."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, as of any optimizer; the states of `own_dtypes` keep their dtypes."""
        super().load_state_dict(state_dict)
        restore_dtypes(self, state_dict)


def restore_dtypes(optimizer: Optimizer, loaded: Mapping[str, Any]) -> None:
    """Restore the dtypes of states that PyTorch casts to the parameters' dtypes.

    They are the `own_dtypes` of a `BaseOptimizer`, and the buffers of wrappers. The states of other
    optimizers stay as PyTorch loads them: a state in float32 may be for a model that is now in
    bfloat16.
    """
    names = set(optimizer.own_dtypes if isinstance(optimizer, BaseOptimizer) else ())
    for hook in optimizer._optimizer_step_pre_hooks.values():
        wrapper = getattr(hook, "__self__", None)
        names |= set(wrapper.buffers if isinstance(wrapper, StepWrapper) else ())
    for own, saved in zip(optimizer.param_groups, loaded["param_groups"], strict=True):
        for p, number in zip(own["params"], saved["params"], strict=True):
            values = loaded["state"].get(number, {})
            kept = {n: v.to(p.device, copy=True) for n, v in values.items() if n in names}
            if kept:  # a parameter without a state gets none
                optimizer.state[p] |= kept


def wrap(optimizer: AnyOptimizer, wrapper: StepWrapper) -> AnyOptimizer:
    """Add a wrapper to an optimizer, outside of those that it has, and return the optimizer."""
    optimizer.register_step_pre_hook(wrapper.enter)
    optimizer.register_step_post_hook(wrapper.leave)
    if wrapper.buffers:
        optimizer.register_load_state_dict_pre_hook(wrapper.note)
        optimizer.register_load_state_dict_post_hook(wrapper.restore)
    if hasattr(optimizer, "_step_supports_amp_scaling"):
        # GradScaler then skips steps that overflow itself: a fused step would be an empty one.
        optimizer._step_supports_amp_scaling = False
    return optimizer


def check_wrappable(optimizer: Any, function: str, kind: type[StepWrapper]) -> None:
    """Check that an optimizer can have a wrapper.

    Raises:
        TypeError: It is not an optimizer.
        ValueError: It is schedule-free, or has such a wrapper.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer={optimizer!r} must be a torch.optim.Optimizer. In the Trainer, pass a "
            f"function that builds one: lambda parameters: {function}(AdamW(parameters))."
        )
    if any("train_mode" in group for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer={type(optimizer).__name__} is schedule-free: its steps move two sets of "
            f"weights, of which {function} would change one. Use another optimizer."
        )
    hooks = optimizer._optimizer_step_pre_hooks.values()
    if any(isinstance(getattr(hook, "__self__", None), kind) for hook in hooks):
        raise ValueError(f"optimizer={type(optimizer).__name__} has {function} already.")


def local_values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that this process has, complex ones as pairs."""
    local = local_part(tensor.detach())
    return torch.view_as_real(local) if local.is_complex() else local


# --- steps and options ---


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Call the closure of a step, which computes the loss and the gradients, if there is one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_lr(name: str, value: Any) -> None:
    """Raise an error unless a value is a learning rate: a number, or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    check_range(name, value, 0, ends="[)")


def check_betas(name: str, value: Any, first: str = "[)") -> None:
    """Raise an error unless a value is two numbers in [0, 1).

    Args:
        name: The option.
        value: Its value.
        first: The brackets of the interval of the first.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be two numbers, such as (0.9, 0.999).")
    for i, ends in enumerate((first, "[)")):
        check_range(f"{name}[{i}]", value[i], 0, 1, ends=ends)
