"""Lookahead around any optimizer: weights that are pulled back to a slow copy every few steps.

Zhang, Lucas, Hinton and Ba, "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019,
https://arxiv.org/abs/1907.08610
"""

import attrs

from composable._support.checks import check_count, check_range
from composable._support.foreach import foreach_, per_dtype
from composable.optim.wrapping import (
    AnyOptimizer,
    Group,
    State,
    StepWrapper,
    Tensors,
    check_wrappable,
    local_values,
    wrap,
)

MOVED, DECAY, STEP = "lookahead", "lookahead_decay", "lookahead_step"


def with_lookahead(
    optimizer: AnyOptimizer, *, decay: float = 0.5, interval: int = 5
) -> AnyOptimizer:
    r"""Add Lookahead to an optimizer: every few steps, pull the weights back to a slow copy.

    After each `interval` steps, with the slow weights $\phi$, which are at first those before the
    first step, and the weights $\theta$ of the optimizer,

    $$\phi \leftarrow \gamma \phi + (1 - \gamma) \theta, \qquad \theta \leftarrow \phi$$

    The decay $\gamma$ is the option "lookahead_decay" of the parameter groups, so that
    `per_option` gives it a schedule.

    Args:
        optimizer: Any optimizer of PyTorch, not a schedule-free one. It is changed: its `step` has
            hooks.
        decay: The share $\gamma$ of the slow weights to keep, in [0, 1]; 0 for no change.
        interval: The number of steps between two updates of the slow weights, 1 or more.

    Returns:
        The optimizer itself. Its state dict has what the weights moved since the last update. A
        copy of it has no hooks.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the optimizer is schedule-free or has Lookahead.

    Example:
        >>> import torch
        >>> from composable.optim import with_lookahead
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> optimizer = with_lookahead(torch.optim.SGD([weight], lr=1.0), decay=0.75, interval=2)
        >>> weight.grad = -torch.ones(1)
        >>> for _ in range(2):
        ...     optimizer.step()
        ...     print(weight.item())  # two steps to 2, and back to a quarter of the way
        1.0
        0.5
    """
    check_wrappable(optimizer, "with_lookahead", Lookahead)
    check_range("decay", decay, 0, 1)
    check_count("interval", interval, 1)
    for group in optimizer.param_groups:
        group[DECAY] = decay
    return wrap(optimizer, Lookahead(decay, interval))


@attrs.define(eq=False)
class Lookahead(StepWrapper):
    """The wrapper; it takes the arguments of `with_lookahead`.

    Not the slow weights, but what the weights moved since is kept: it is right for parameters
    without a gradient in some steps, too.
    """

    decay: float
    interval: int

    buffers = (MOVED,)

    def prepare(self, group: Group) -> None:
        """Count the step."""
        group.setdefault(DECAY, self.decay)  # of a group that was added later
        group[STEP] = group.get(STEP, 0) + 1

    def update(self, group: Group, before: Tensors, after: Tensors, states: list[State]) -> Tensors:
        """Add the step to what the weights moved, and pull them back when due."""
        moved = [local_values(state[MOVED]) for state in states]
        per_dtype(_add_step, moved, before, after)
        if group[STEP] % self.interval:
            return after
        share = float(group[DECAY])
        check_range(DECAY, share, 0, 1)  # a schedule may have changed it

        def pulled(ends: Tensors, steps: Tensors) -> Tensors:
            back = [step.to(end.dtype) for step, end in zip(steps, ends, strict=True)]
            return foreach_("sub", ends, back, alpha=share)

        new = per_dtype(pulled, after, moved)
        per_dtype(lambda steps: foreach_("zero", steps), moved)
        return new


def _add_step(moved: Tensors, before: Tensors, after: Tensors) -> Tensors:
    dtype = moved[0].dtype
    back = foreach_("sub", [one.to(dtype) for one in before], [one.to(dtype) for one in after])
    return foreach_("sub", moved, back)
