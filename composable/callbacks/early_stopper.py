"""Ends training when a result gets no better."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composable.core.callback import Callback, check_keys
from composable.core.control import Control
from composable.core.time import Time, TimeLike, check_time, progress

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["EarlyStopper"]


class EarlyStopper(Callback):
    """Asks to stop when a result of evaluation has not become better for longer than `patience`.

    It looks after every evaluation in training. A result is better when it beats the best one by
    more than `min_delta`; a NaN never is. With an evaluation each epoch and the default patience
    of one epoch, the second epoch in a row that brings nothing better is the last.

    Args:
        monitor: The name of the result: "loss", or that of a metric.
        dataloader_label: The label of the evaluator whose result it is.
        mode: "min" where less is better, "max" where more is. By default "min" for a name with
            "loss", "error" or "perplexity" in it, and "max" for any other.
        min_delta: By how much a result must beat the best one, at least 0.
        patience: How long it may take until a result is better: "3ep", "500ba", "0.1dur".

    Raises:
        ValueError: An argument is out of range, or the evaluator has no result of that name.

    Example:
        >>> from composable.callbacks import EarlyStopper
        >>> stopper = EarlyStopper("accuracy", patience="3ep")
        >>> stopper.mode
        'max'
    """

    def __init__(
        self,
        monitor: str,
        *,
        dataloader_label: str = "eval",
        mode: str | None = None,
        min_delta: float = 0.0,
        patience: TimeLike = "1ep",
    ) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode={mode!r} must be 'min', 'max' or None.")
        if not min_delta >= 0:
            raise ValueError(f"min_delta={min_delta!r} must be at least 0.")
        self.monitor = monitor
        self.dataloader_label = dataloader_label
        self.mode = mode or _guess_mode(monitor)
        self.min_delta = min_delta
        self.patience: Time = check_time("patience", patience)
        self.best: float | None = None
        """The best result so far."""
        self._since: Any = None
        self._results: Any = None

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Forget an earlier run."""
        if state.timestamp.batch == 0:
            self.best = self._since = None

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        """Note the results that are old."""
        self._results = state.metrics.get(self.dataloader_label)

    def eval_after_all(self, state: "State", logger: "Logger") -> Control | None:
        """Look at the result, if it is a new one."""
        results = state.metrics.get(self.dataloader_label)
        if results is None or results is self._results:
            return None  # others were evaluated
        if self.monitor not in results:
            raise ValueError(
                f"monitor={self.monitor!r} is no result of the evaluator "
                f"{self.dataloader_label!r}: it has {sorted(results)}."
            )
        now, patience = progress(state, self.patience)
        if self._since is None or self._is_better(results[self.monitor]):
            self._since = now
        if self._is_better(results[self.monitor]):
            self.best = results[self.monitor]
        return Control.STOP if now - self._since > patience else None

    def fit_end(self, state: "State", logger: "Logger") -> None:
        """Say so where there was nothing to look at."""
        if self._since is None:
            warnings.warn(
                f"EarlyStopper saw no evaluation of {self.dataloader_label!r}: there are results "
                f"of {sorted(state.metrics)}. Give the label of an evaluator that is run.",
                stacklevel=2,
            )

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return value == value
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        """The best result, and how far the run was when it came."""
        return {"best": self.best, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the best result of a run."""
        check_keys(self, state)
        self.best, self._since = state["best"], state["since"]


def _guess_mode(monitor: str) -> str:
    less = any(word in monitor.lower() for word in ("loss", "error", "perplexity"))
    return "min" if less else "max"
