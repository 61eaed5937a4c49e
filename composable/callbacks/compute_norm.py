"""Log the norms of all parameters and of their gradients."""

from composable.callbacks.optimizer_monitor import OptimizerMonitor
from composable.core.intervals import IntervalLike


class ComputeNorm(OptimizerMonitor):
    """Logs the L2 norms of the gradients and weights of the model, and of each parameter.

    The callback of this name in Cerebras Model Zoo: an `OptimizerMonitor` with the norms of each
    parameter and without the norms of updates.

    Args:
        interval: When to log: "20ba", "1ep", a function `(state, event) -> bool`, or None for
            never.

    Raises:
        ValueError: `interval` is not a valid interval.
        TypeError: `interval` has the wrong type.

    Example:
        >>> from composable.callbacks import ComputeNorm
        >>> ComputeNorm("100ba").per_parameter
        True
    """

    def __init__(self, interval: IntervalLike = "20ba") -> None:
        super().__init__(interval, updates=False, per_parameter=True)
