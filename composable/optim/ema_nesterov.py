"""EMA-Nesterov around any optimizer: see `composable.functional.ema_nesterov_step`."""

from math import inf

import attrs

from composable._support.checks import check_count, check_order, check_range
from composable.functional.ema_nesterov import move_ahead
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

AVERAGE, LOOKAHEAD = "ema_nesterov", "ema_nesterov_lookahead"
STEP, MAX_LR = "ema_nesterov_step", "ema_nesterov_max_lr"


def with_ema_nesterov(
    optimizer: AnyOptimizer,
    *,
    lookahead: float = 0.6,
    decay: float = 0.99,
    start: int = 0,
    end: int | None = None,
) -> AnyOptimizer:
    r"""Add EMA-Nesterov to an optimizer: gradients are computed ahead of the weights.

    After each step, the parameters are moved ahead in the mean direction of the last steps, by
    $\beta_t m$: see `composable.functional.ema_nesterov_step`. In step $t$,
    $\beta_t = \text{lookahead} \cdot \eta / \eta_{\max}$ with the learning rate $\eta$ of the step
    before, if `start` $\le t <$ `end`, and otherwise 0. So at the end of a schedule that ends at
    0, the parameters are the weights.

    Args:
        optimizer: Any optimizer of PyTorch, not a schedule-free one. It is changed: its `step` has
            hooks.
        lookahead: The largest $\beta$, in steps. The authors take 0.3 to 0.6.
        decay: The share of the average that each step keeps, in [0, 1].
        start: The first step ahead of the weights. The authors take a sixth of all steps.
        end: The first step that is no longer ahead; by default none. The authors take three
            quarters of all steps.

    Returns:
        The optimizer itself. Its state dict has the average. A copy of it has no hooks.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the optimizer is schedule-free or has EMA-Nesterov.

    Example:
        >>> from composable.optim import with_ema_nesterov
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = with_ema_nesterov(torch.optim.SGD([weight], lr=0.5), decay=0.5)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()  # to 0.5, and 0.6 of the mean step of -0.25 ahead
        >>> weight.item()
        0.3499999940395355
    """
    check_wrappable(optimizer, "with_ema_nesterov", EMANesterov)
    check_range("lookahead", lookahead, -inf, ends="()")
    check_range("decay", decay, 0, 1)
    check_count("start", start)
    if end is not None:
        check_count("end", end)
        check_order("start", start, "end", end)
    return wrap(optimizer, EMANesterov(lookahead, decay, start, inf if end is None else end))


@attrs.define(eq=False)
class EMANesterov(StepWrapper):
    """The wrapper; it takes the arguments of `with_ema_nesterov`."""

    lookahead: float
    decay: float
    start: int
    end: float

    buffers = (AVERAGE,)

    def prepare(self, group: Group) -> None:
        """Count the step, and note the largest learning rate."""
        lr = float(group["lr"])
        group[STEP] = group.get(STEP, 0) + 1
        group[MAX_LR] = max(group.get(MAX_LR, 0.0), lr, float(group.get("initial_lr", lr)))

    def update(self, group: Group, before: Tensors, after: Tensors, states: list[State]) -> Tensors:
        """Move the weights ahead, each from the distance that it had."""
        lookahead = self._distance(group)
        last: dict[float, list[int]] = {}
        for i, state in enumerate(states):
            last.setdefault(state.get(LOOKAHEAD, 0.0), []).append(i)
            state[LOOKAHEAD] = lookahead
        new = list(after)
        for distance, some in last.items():  # one, unless some parameters had no gradients
            points, _ = move_ahead(
                [before[i] for i in some],
                [after[i] for i in some],
                [local_values(states[i][AVERAGE]) for i in some],
                lookahead=lookahead,
                last_lookahead=distance,
                decay=self.decay,
            )
            for i, point in zip(some, points, strict=True):
                new[i] = point
        return new

    def _distance(self, group: Group) -> float:
        """Return the distance of the next step."""
        if not self.start <= group[STEP] < self.end or not group[MAX_LR]:
            return 0.0
        return self.lookahead * (float(group["lr"]) / float(group[MAX_LR]))
