"""Momentum warm-up: little momentum in the first steps, whose gradients soon are out of date.

The records of modded-nanogpt, 2024, https://github.com/KellerJordan/modded-nanogpt
"""

from composable._support.checks import check_count, check_order, check_range


def warmed_up_momentum(
    step: int, *, start: float = 0.85, end: float = 0.95, num_steps: int = 300
) -> float:
    r"""Return the momentum of a step: it rises linearly.

    $$\mu_t = \mu_0 + \min\left(1, \frac{t}{n}\right) (\mu_1 - \mu_0)$$

    Args:
        step: The number $t$ of steps before this one, 0 or more.
        start: The momentum $\mu_0$ of the first step, in [0, 1).
        end: The momentum $\mu_1$ after the warm-up, in [0, 1), at least `start`.
        num_steps: The number $n$ of steps of the warm-up, 0 or more.

    Returns:
        The momentum, in `[start, end]`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or `end` is below `start`.

    Example:
        >>> [warmed_up_momentum(t, start=0.5, end=0.75, num_steps=2) for t in range(4)]
        [0.5, 0.625, 0.75, 0.75]
    """
    check_count("step", step)
    check_range("start", start, 0, 1, ends="[)")
    check_range("end", end, 0, 1, ends="[)")
    check_order("start", start, "end", end)
    check_count("num_steps", num_steps)
    if step >= num_steps:
        return end
    return start + step / num_steps * (end - start)
