"""Momentum warm-up of any optimizer: see `composable.functional.warmed_up_momentum`."""

import attrs

from composable._support.checks import check_count, check_range
from composable.functional import warmed_up_momentum
from composable.optim.wrapping import AnyOptimizer, Group, StepWrapper, check_wrappable, wrap

STEP, FINAL = "momentum_warmup_step", "final_momentum"


def with_momentum_warmup(
    optimizer: AnyOptimizer, *, start: float = 0.85, num_steps: int = 300
) -> AnyOptimizer:
    r"""Let the momentum of an optimizer rise linearly to its value, in the first steps.

    The momentum is the option "momentum" of a group, as of SGD and of the matrices of `Muon`, or if
    no group has one, the first of "betas", as of AdamW. After the warm-up nothing is
    changed any more.

    Args:
        optimizer: Any optimizer of PyTorch with momentum, not a schedule-free one. It is changed:
            its `step` has hooks.
        start: The momentum of the first step, in [0, 1), at most the momentum of each group.
        num_steps: The number of steps of the warm-up, 0 or more.

    Returns:
        The optimizer itself. A copy of it has no hooks.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, no group has momentum, one has less than `start`, or
            the optimizer is schedule-free or has a momentum warm-up.

    Example:
        >>> from composable.optim import with_momentum_warmup
        >>> optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], momentum=0.75)
        >>> optimizer = with_momentum_warmup(optimizer, start=0.5, num_steps=2)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     print(optimizer.param_groups[0]["momentum"])
        0.5
        0.625
        0.75
    """
    check_wrappable(optimizer, "with_momentum_warmup", MomentumWarmup)
    check_range("start", start, 0, 1, ends="[)")
    check_count("num_steps", num_steps)
    groups = optimizer.param_groups
    option = next((one for one in ("momentum", "betas") if any(one in g for g in groups)), None)
    if option is None:
        raise ValueError(
            f"optimizer={type(optimizer).__name__} has no momentum: no group has an option "
            "'momentum' or 'betas'."
        )
    for group in (group for group in groups if option in group):
        if start > (momentum := _momentum(group, option)):
            raise ValueError(
                f"start={start} must be at most {momentum}, the momentum of a group of the "
                "optimizer."
            )
    return wrap(optimizer, MomentumWarmup(option, start, num_steps))


@attrs.define(eq=False)
class MomentumWarmup(StepWrapper):
    """The wrapper: `option` is the name of the momentum in the groups."""

    option: str
    start: float
    num_steps: int

    def prepare(self, group: Group) -> None:
        """Set the momentum of the step."""
        if self.option not in group:
            return
        end = group.setdefault(FINAL, _momentum(group, self.option))
        step = group.get(STEP, 0)
        group[STEP] = step + 1
        if step <= self.num_steps:
            new = warmed_up_momentum(step, start=self.start, end=end, num_steps=self.num_steps)
            group[self.option] = new if self.option == "momentum" else (new, *group["betas"][1:])

    def changes(self, group: Group) -> bool:
        """Return False: it changes no weights itself."""
        return False


def _momentum(group: Group, option: str) -> float:
    return float(group[option] if option == "momentum" else group[option][0])
