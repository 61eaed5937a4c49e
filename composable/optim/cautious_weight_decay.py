"""Cautious weight decay around any optimizer: see `composable.functional.cautious_weight_decay`."""

import attrs

from composable.functional.cautious_weight_decay import decay_inward
from composable.optim.wrapping import (
    AnyOptimizer,
    Group,
    State,
    StepWrapper,
    Tensors,
    check_wrappable,
    wrap,
)

DECAY = "cautious_weight_decay"


def with_cautious_weight_decay(optimizer: AnyOptimizer) -> AnyOptimizer:
    r"""Make the weight decay of an optimizer cautious: it acts on weights that move towards zero.

    The weight decay $\lambda$ of each group moves from its option "weight_decay", which becomes 0,
    to "cautious_weight_decay". It is decoupled: a step decays by $\eta \lambda$, whatever the
    optimizer does with its weight decay. See `composable.functional.cautious_weight_decay`.

    Args:
        optimizer: Any optimizer of PyTorch with weight decay, not a schedule-free one. It is
            changed: its `step` has hooks.

    Returns:
        The optimizer itself. A copy of it has no hooks.

    Raises:
        TypeError: `optimizer` is not an optimizer.
        ValueError: No group has a weight decay above 0, or the optimizer is schedule-free or
            cautious already.

    Example:
        >>> from composable.optim import with_cautious_weight_decay
        >>> weight = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.5, weight_decay=0.25)
        >>> _ = with_cautious_weight_decay(optimizer)
        >>> weight.grad = torch.tensor([1.0, -1.0])
        >>> optimizer.step()
        >>> weight.data
        tensor([0.3750, 1.5000])
    """
    check_wrappable(optimizer, "with_cautious_weight_decay", CautiousWeightDecay)
    if not any(group.get("weight_decay") for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer={type(optimizer).__name__} has no group with a weight_decay above 0, which "
            "with_cautious_weight_decay makes cautious: pass weight_decay to the optimizer."
        )
    wrapper = CautiousWeightDecay()
    for group in optimizer.param_groups:
        wrapper.prepare(group)
    return wrap(optimizer, wrapper)


@attrs.define(eq=False)
class CautiousWeightDecay(StepWrapper):
    """The wrapper."""

    def prepare(self, group: Group) -> None:
        """Take the weight decay over, also one that was set since the last step."""
        if group.get("weight_decay") or DECAY not in group:
            group[DECAY] = group.get("weight_decay", 0.0)
            group["weight_decay"] = 0.0

    def changes(self, group: Group) -> bool:
        """Return whether the group has weight decay."""
        return bool(group[DECAY])

    def update(self, group: Group, before: Tensors, after: Tensors, states: list[State]) -> Tensors:
        """Decay the weights that moved towards zero."""
        return decay_inward(before, after, float(group["lr"]) * group[DECAY])
