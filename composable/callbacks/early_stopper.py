"""Stop training when a metric has stopped improving."""

import re
from typing import Any, ClassVar

from composable._support.checks import check_range
from composable.callbacks._watched_result import WatchedResult
from composable.core.logger import Logger
from composable.core.results import is_better
from composable.core.state import State
from composable.core.stateful import Count, NumberOrNone
from composable.core.time import Time, TimeLike, check_time, progress

_EVALUATIONS = re.compile(r"([0-9]+)eval")


class EarlyStopper(WatchedResult):
    """Stops training when an evaluation result has not improved for longer than `patience`.

    The result is checked after every evaluation during training. It improves if it is better than
    the best one by more than `min_delta`; NaN never does. With one evaluation per epoch and the
    default patience of one epoch, training stops after the second epoch in a row without
    improvement.

    Args:
        monitor: The name of the result: "accuracy", or with the label of its evaluator,
            "eval/accuracy".
        dataloader_label: The label of the evaluator. Default: the evaluator in `monitor`, or
            "eval".
        mode: "min" if lower is better, "max" if higher is better. Default: what the metric declares
            as `higher_is_better`, or determined by the name of the result, such as "loss",
            "error", "accuracy" or "f1".
        min_delta: The minimum improvement, at least 0.
        patience: The maximum time without improvement: "3ep", "500ba", "0.1dur", "30m", or a number
            of evaluations of this evaluator: "3eval".

    Raises:
        ValueError: An argument has an invalid value, nothing determines the mode, or the evaluator
            has no result of that name.

    Example:
        >>> from composable.callbacks import EarlyStopper
        >>> stopper = EarlyStopper("accuracy", patience="3ep")
        >>> stopper.mode
        'max'
    """

    _saved_attributes: ClassVar = {
        "best": NumberOrNone,
        "_since": NumberOrNone,
        "_evaluations": Count,
    }

    def __init__(
        self,
        monitor: str,
        *,
        dataloader_label: str | None = None,
        mode: str | None = None,
        min_delta: float = 0.0,
        patience: TimeLike = "1ep",
    ) -> None:
        super().__init__(monitor, dataloader_label, mode)
        check_range("min_delta", min_delta, 0)
        self.min_delta = min_delta
        self.patience: Time | str = _check_patience(patience)
        self.best: float | None = None
        """The best result so far."""
        self._since: Any = None
        self._evaluations = 0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Discard the results of an earlier run."""
        if state.timestamp.batch == 0:
            self.best, self._since, self._evaluations = None, None, 0

    def _is_over(self, state: State, mode: str, value: float) -> bool:
        self._evaluations += 1
        now, patience = self._elapsed(state)
        better = is_better(mode, value, self.best, self.min_delta)
        if self._since is None or better:
            self._since = now
        if better:
            self.best = value
        return bool(now - self._since > patience)

    def _elapsed(self, state: State) -> tuple[Any, Any]:
        """Return the current time and the patience, in one unit."""
        if isinstance(self.patience, Time):
            return progress(state, self.patience)
        return self._evaluations, int(self.patience.removesuffix("eval"))


def _check_patience(patience: Any) -> Time | str:
    if isinstance(patience, str) and _EVALUATIONS.fullmatch(patience):
        return patience
    return check_time("patience", patience)
