"""Stop training when a metric reaches a threshold."""

from composable._support.checks import check_range
from composable.callbacks._watched_result import WatchedResult
from composable.core.state import State


class ThresholdStopper(WatchedResult):
    """Stops training when an evaluation result is at least as good as a threshold.

    The result is checked after every evaluation during training. NaN never reaches the threshold.

    Args:
        monitor: The name of the result: "accuracy", or with the label of its evaluator,
            "eval/accuracy".
        threshold: The value to reach.
        dataloader_label: The label of the evaluator. Default: the evaluator in `monitor`, or
            "eval".
        mode: "min" if lower is better, "max" if higher is better. Default: what the metric declares
            as `higher_is_better`, or determined by the name of the result, such as "loss",
            "error", "accuracy" or "f1".

    Raises:
        ValueError: An argument has an invalid value, nothing determines the mode, or the evaluator
            has no result of that name.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable.callbacks import ThresholdStopper
        >>> stopper = ThresholdStopper("accuracy", 0.759)
        >>> stopper.mode
        'max'
    """

    def __init__(
        self,
        monitor: str,
        threshold: float,
        *,
        dataloader_label: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(monitor, dataloader_label, mode)
        check_range("threshold", threshold, -float("inf"))
        self.threshold = threshold

    def _is_over(self, state: State, mode: str, value: float) -> bool:
        return value <= self.threshold if mode == "min" else value >= self.threshold
